"""Answers to AxoNN's claims on memory, from bytes that the engine allocates on small networks.

Systems are built from their configs. Bytes are counted on allocated tensors, never on planned layouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from suite.claims.answer import Cases, Question
from suite.comm.p2p import threads
from suite.engine.engine import Engine
from suite.engine.system import EngineSystem
from suite.papers.axonn.measured import AFTER, BEFORE, HALF, SUFFIX, Scaled, build_engine, resolve, single_rank
from suite.papers.measured import states_of, step_bytes, storages, tensors_of


def after_a_batch(system: str, entries: int, bucket: int = 1000) -> Engine:
    """Engine of one rank after a batch on a weight of `entries` entries."""
    config = resolve(f"system={system}", HALF, f"optimizer.bucket_numel={bucket}")
    engine = build_engine(config, [Scaled(entries)], single_rank())
    engine.train_batch((torch.ones(2, 1), torch.zeros(2, 1)))
    return engine


def on_the_host(engine: Engine) -> list[torch.Tensor]:
    """States in host memory, which an update fetches bucket by bucket."""
    shuttle, rule = engine.state.model_states.offloader, engine.state.model_states.rule
    names = {state.name for state in shuttle.fetched} if shuttle else set()
    states = {"master": rule.weights[0], **rule.moments}
    return [tensor for name, tensor in states.items() if name + SUFFIX in names]


def on_the_device(engine: Engine) -> int:
    """Bytes of all tensors of the train state between batches, without the states in host memory."""
    allocated = storages(tensors_of(engine.state.model_states, gradients=True))
    return sum(allocated.values()) - sum(allocated[key] for key in storages(on_the_host(engine)))


def state_peak(system: str, entries: int, bucket: int = 1000) -> int:
    """Permanent allocations of a rank without the states on the host, plus allocations of a step."""
    engine = after_a_batch(system, entries, bucket)
    return on_the_device(engine) + step_bytes(engine)


def state_bytes(question: Question, source: Any, *, state: str, entries: Sequence[int]) -> tuple[Cases, str]:
    """Allocated bytes per parameter of one state, on a rank without offload."""

    tensors = [(states_of(after_a_batch(BEFORE, count))[state], count) for count in entries]
    cases = [[sum(storages(of_state).values()) / count] for of_state, count in tensors]
    return cases, f"allocations of the engine of {BEFORE}, in bfloat16 and float32"


def footprint(bucket: int) -> int:
    """Peak of the allocations of a step of AxoNN with ten buckets."""
    return step_bytes(after_a_batch(AFTER, 10 * bucket, bucket))


def saving(question: Question, source: Any, *, entries: int, buckets: Sequence[int]) -> tuple[Cases, str]:
    before = state_peak(BEFORE, entries, buckets[0])
    cases = [[before / state_peak(AFTER, entries, bucket)] for bucket in buckets]
    return cases, f"{before} bytes before, {entries} parameters, buckets of {', '.join(map(str, buckets))}"


# Total memory of a small run


@cache
def memory(system: str, hidden: int, heads: int, sequence: int, bucket: int) -> tuple[int, int]:
    """Bytes of a GPT on four stages: permanent model states, and the sum of the stages' peaks.

    Args:
        system: Name of the system.
        hidden: Width of the GPT.
        heads: Attention heads.
        sequence: Tokens per sequence.
        bucket: Entries of an optimizer bucket.
    """
    shape = {"layers": 8, "hidden": hidden, "heads": heads, "sequence": sequence}
    config = resolve(
        *(f"system={system}", HALF, "grid.inter=4", "batch.size=8", "batch.microbatch=1"),
        *(f"model.shape.{name}={value}" for name, value in shape.items()),
        *("activation_checkpointing=auto", f"optimizer.bucket_numel={bucket}"),
    )
    tokens = np.random.default_rng(0).integers(0, config.model.shape.arguments["vocabulary"], (8, sequence))

    def rank(world: Any) -> tuple[int, int]:
        system = EngineSystem(world=world, config=config)
        system.train_batch((tokens, tokens))
        _, peak = system.memory((tokens, tokens))
        state_bytes = on_the_device(system.engine), sum(peak.values())
        system.close()
        return state_bytes

    ranks = threads.run(4, rank)
    return sum(states for states, _ in ranks), sum(peak for _, peak in ranks)


def memory_ratio(question: Question, source: Any, **shape: int) -> tuple[Cases, str]:
    before, after = (memory(system, **shape)[1] for system in (BEFORE, AFTER))
    return [[before / after]], f"sums of the peaks of four stages: {before} bytes before, {after} after"


def below_states(question: Question, source: Any, *, buckets: Sequence[int], **lists: Sequence[int]) -> Cases:
    """Before over after, summed over four stages: peaks, then permanent states."""
    cases = []
    for number, bucket in enumerate(buckets):
        shape = {name: values[number] for name, values in lists.items()}
        before, after = (memory(system, bucket=bucket, **shape) for system in (BEFORE, AFTER))
        cases.append([before[1] / after[1], before[0] / after[0]])
    return cases
