"""Bytes of model states that AxoNN's engine allocates, on small networks whose systems are built from their configs.

Bytes are counted on tensors that are held, never on planned layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from suite.comm.p2p import threads
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.system import EngineSystem
from suite.papers.axonn.probes import AFTER, BEFORE, HALF, SUFFIX, Scaled, alone, made, resolve
from suite.papers.common.answer import Cases, Question
from suite.papers.common.probes import tensors_of


def after_a_batch(system: str, entries: int, bucket: int = 1000) -> Engine:
    config = resolve(f"system={system}", HALF, f"optimizer.bucket_numel={bucket}")
    engine = made(config, [Scaled(entries)], alone())
    engine.train_batch((torch.ones(2, 1), torch.zeros(2, 1)))
    return engine


def storages(tensors: Iterator[torch.Tensor] | Sequence[torch.Tensor]) -> dict[int, int]:
    """Bytes by allocation: views of one count once."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}


def on_the_host(engine: Engine) -> list[torch.Tensor]:
    """Bytes that an update fetches, bucket by bucket, from where they are kept."""
    shuttle, rule = engine.state.model_states.offloader, engine.state.model_states.rule
    names = {state.name for state in shuttle.fetched} if shuttle else set()
    states = {"master": rule.weights[0], **rule.moments}
    return [tensor for name, tensor in states.items() if name + SUFFIX in names]


def on_the_device(engine: Engine) -> int:
    """Bytes of everything that the engine's states hold between batches, less what is kept on the host."""
    storages_by_kind = storages(tensors_of(engine.state.model_states, gradients=True))
    return sum(storages_by_kind.values()) - sum(storages_by_kind[key] for key in storages(on_the_host(engine)))


def in_a_step(engine: Engine) -> int:
    """The maximum of live bytes that a step allocates."""
    with MemoryTracker() as live:
        engine.state.model_states.step(engine.state.update.rule)
    return int(live.peak)


def needed(system: str, entries: int, bucket: int) -> int:
    engine = after_a_batch(system, entries, bucket)
    return on_the_device(engine) + in_a_step(engine)


def state_bytes(question: Question, source: Any, *, state: str, entries: Sequence[int]) -> tuple[Cases, str]:
    """Bytes per parameter that are allocated for one of the states of a rank without offload."""

    def held(engine: Engine) -> Mapping[str, Sequence[torch.Tensor]]:
        states = engine.state.model_states
        return {
            "theta16": [parameter.data for parameter in states.parameters],
            "grad16": [p.grad for p in states.parameters if p.grad is not None],
            "theta32": states.rule.weights,
            "grad32": [] if states.full_gradient is None else [states.full_gradient],
            "optimizer_state": list(states.rule.moments.values()),
        }

    bytes_by_count = [(held(after_a_batch(BEFORE, count))[state], count) for count in entries]
    cases = [[sum(storages(tensors).values()) / count] for tensors, count in bytes_by_count]
    return cases, f"allocations behind the tensors that the engine of {BEFORE} holds, in bfloat16 and float32"


def resident_bytes(question: Question, source: Any) -> tuple[Cases, str]:
    values = [needed(BEFORE, int(point["phi"]), 1000) for point in question.points]
    return [values], f"allocations that a rank of {BEFORE} holds, and what a step allocates beside them"


def footprint(question: Question, source: Any) -> tuple[Cases, str]:
    sizes = [int(point["bsize"]) for point in question.points]
    values = [in_a_step(after_a_batch(AFTER, 10 * size, size)) for size in sizes]
    return [values], f"most bytes alive of what a step of {AFTER} allocates for ten buckets"


def offloaded_bytes(question: Question, source: Any) -> tuple[Cases, str]:
    values = [needed(AFTER, int(point["phi"]), int(point["bsize"])) for point in question.points]
    return [values], f"allocations of {AFTER} less what a step fetches, and what it allocates meanwhile"


def saving(question: Question, source: Any, *, entries: int, buckets: Sequence[int]) -> tuple[Cases, str]:
    before = needed(BEFORE, entries, buckets[0])
    cases = [[before / needed(AFTER, entries, bucket)] for bucket in buckets]
    return cases, f"{before} bytes before, {entries} parameters, buckets of {', '.join(map(str, buckets))}"


# All memory of a small run


@cache
def memory(system: str, hidden: int, heads: int, sequence: int, bucket: int) -> tuple[int, int]:
    """Bytes of all stages of a GPT on four: model states that are held for ever, and the sum of the peaks."""
    shape = {"layers": 8, "hidden": hidden, "heads": heads, "sequence": sequence}
    config = resolve(
        *(f"system={system}", HALF, "grid.inter=4", "batch.size=8", "batch.microbatch=1"),
        *(f"model.shape.{name}={value}" for name, value in shape.items()),
        *("activation_checkpointing=auto", f"optimizer.bucket_numel={bucket}"),
    )
    tokens = np.random.default_rng(0).integers(0, config.model.shape.arguments["vocabulary"], (8, sequence))

    def rank(world: Any) -> tuple[int, int]:
        one = EngineSystem(world=world, config=config)
        one.train_batch((tokens, tokens))
        _, peak = one.memory((tokens, tokens))
        state_bytes = on_the_device(one.engine), sum(peak.values())
        one.close()
        return state_bytes

    ranks = threads.run(4, rank)
    return sum(states for states, _ in ranks), sum(peak for _, peak in ranks)


def memory_ratio(question: Question, source: Any, **shape: int) -> tuple[Cases, str]:
    before, after = (memory(system, **shape)[1] for system in (BEFORE, AFTER))
    return [[before / after]], f"sums of the peaks of four stages: {before} bytes before, {after} after"


def below_states(
    question: Question, source: Any, *, buckets: Sequence[int], **lists: Sequence[int]
) -> tuple[Cases, str]:
    cases = []
    for number, bucket in enumerate(buckets):
        shape = {name: values[number] for name, values in lists.items()}
        (states, peak), (fewer, less) = (memory(system, bucket=bucket, **shape) for system in (BEFORE, AFTER))
        cases.append([peak / less, states / fewer])
    return cases, "sums over four stages: peaks, and states held for ever, before over after"


# Bytes that a rank sends
