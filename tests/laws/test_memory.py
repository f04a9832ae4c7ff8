"""Law 4: layout bytes equal allocated bytes, and the predicted peak is within 5 % of the live bytes counted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from suite.cli.run import run
from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.conformance.memory import check_memory, count_memory
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.pruning.settings import Pruning
from suite.engine.system import EngineSystem
from suite.memory.layout import compressed, offloaded, resident
from tests.support.cases import engine_of, gpt_case
from tests.support.drawn import cells, few
from tests.support.masked import FixedMask, random_mask
from tests.support.ranks import on_ranks
from tests.support.systems import every_system

OFFLOADED_SAMO = ["system=axonn_samo", "precision=bf16", "memory=samo_offload"]
SMALL_TEXT = ["data.source.limit_bytes=400000", "batch.size=8"]


IMAGES = ["system=axonn_no_memopt", "data=digits", "optimizer=sgd"]
LARGE = "batch.size=16 batch.microbatch=16 model.shape.image=64"  # activations outweigh the states
EIGHT = "batch.size=8 batch.microbatch=8"
PHOTOGRAPHS = f"{EIGHT} model.shape.form=photographs"
OF_IMAGES = (  # layers differ, so the peak need not be at the largest
    f"model=vgg_narrow {LARGE}",
    f"model=vgg_narrow {LARGE} precision=bf16",
    f"model=vgg_narrow {LARGE} model.shape.hidden=2048",
    f"model=wideresnet_narrow {LARGE} activation_checkpointing=4",
    "model=wideresnet_narrow batch.size=16 batch.microbatch=8 model.shape.widen=4",
    f"model=alexnet_narrow {LARGE}",
    f"model=vgg_16_narrow {EIGHT}",
    f"model=resnet_narrow {EIGHT}",
    f"model=googlenet_narrow {PHOTOGRAPHS} model.shape.image=64 precision=bf16",
    f"model=inception_narrow model.shape.narrow=16 {EIGHT} model.shape.image=16",
    f"model=inception_narrow model.shape.narrow=16 {PHOTOGRAPHS} model.shape.image=80 activation_checkpointing=5",
)
RECURRENT = ["system=axonn_no_memopt", "model.dtype=float64", "batch.size=32", "batch.microbatch=32"]  # plain kernels
OF_TEXTS = (
    "model=residual_lstm_narrow data=snippets model.shape.embedding=48",
    "model=residual_lstm_narrow data=snippets model.shape.sequence=64 model.shape.layers=2",
    "model=gnmt_narrow data=number_names",
    "model=gnmt_narrow data=number_names model.shape.sequence=40 model.shape.hidden=16",
)


def composed(row: Sequence[str]) -> RunConfig:
    return resolve([*([] if any(word.startswith("data=") for word in row) else SMALL_TEXT), *row])


def configs(ranks: int) -> list[list[str]]:
    """Every system on two ranks, and other shapes, vocabularies, widths and precisions on one rank."""
    if ranks == 1:
        return [
            [],
            ["model.dtype=float64", "batch.microbatch=4"],
            ["model.shape.vocabulary=1000", "model.shape.layers=2"],
            ["model.shape.hidden=96", "model.shape.heads=3", "model.shape.sequence=100", "batch.microbatch=1"],
            ["model=gpt_overhead", "batch.size=8", "batch.microbatch=1"],
            ["model.shape.tied=false", "optimizer=sgd"],
            ["weights.graph=recompute", "batch.microbatch=4"],
            ["model.shape.attention_bias=true", "model.shape.layers=1"],
            ["precision=bf16", "memory=dense"],
            ["precision=bf16", "batch.microbatch=4", "optimizer.bucket_numel=20000", "model.shape.hidden=96"],
            ["precision=bf16", "batch.size=1", "batch.microbatch=1", "model.shape.sequence=8"],  # the step is the peak
            ["precision=bf16", "activation_checkpointing=1", "batch.microbatch=4"],
            ["activation_checkpointing=2", "model.shape.layers=8", "batch.microbatch=4"],
            ["activation_checkpointing=4", "weights.graph=recompute", "batch.microbatch=4"],
            ["model=vgg_narrow", "data=digits", "optimizer=sgd", "activation_checkpointing=1"],
            ["system=axonn_samo", "optimizer=sgd", "model.shape.tied=false"],
            ["system=axonn_samo", "precision=bf16", "pruning.sparsity=0.5", "optimizer.bucket_numel=30000"],
            [*OFFLOADED_SAMO, "optimizer.bucket_numel=5000", "model.shape.hidden=96"],
            ["system=axonn_samo", "precision=bf16", "batch.size=1", "batch.microbatch=1", "model.shape.sequence=8"],
            *([*IMAGES, *row.split()] for row in OF_IMAGES),
            *([*RECURRENT, *row.split()] for row in OF_TEXTS),
        ]
    if ranks == 4:
        return [["system=gpipe", "grid.inter=4"], ["system=pipeline", "grid.inter=4"], ["grid.inter=2", "grid.data=2"]]
    rows = [
        [*overrides, "grid.inter=2", *ASYNCHRONOUS.get(name, ())]
        for name, overrides in every_system().items()
        if resolve(overrides).system.has_memory_model
    ]
    rows += [["system=axonn", "grid.data=2"], ["grid.inter=2", "weights.graph=recompute"]]
    rows += [["precision=bf16", "grid.inter=2", "activation_checkpointing=auto", "optimizer.bucket_numel=30000"]]
    few = ["precision=bf16", "batch.size=2", "batch.microbatch=1", "model.shape.sequence=8"]  # the update is the peak
    rows += [["system=axonn_samo", "grid.data=2", "precision=bf16", "pruning=random"]]
    rows += [[*few, "system=axonn_samo", "grid.data=2", "optimizer.bucket_numel=6000"]]
    rows += [
        [*few, "grid.data=2", "optimizer.bucket_numel=20000"],
        [*few, "grid.data=2", "memory=dense", "optimizer.buckets_per_reduction=null"],
    ]
    images = ["system=axonn_no_memopt", "data=digits", "optimizer=sgd", "model.shape.image=64"]
    rows += [[*images, "model=vgg_narrow", "batch.microbatch=8", place] for place in ("grid.inter=2", "grid.data=2")]
    rows += [[*images, "model=wideresnet_narrow", "grid.inter=2", "batch.microbatch=4"]]
    return [*rows, ["system=gpipe", "model=gpt_overhead", "grid.inter=2", "batch.microbatch=1"]]


# no tied weight, and small batches, so that weight versions dominate
SMALL = ("model.shape.tied=false", "batch.size=4")
ASYNCHRONOUS = dict.fromkeys(("pipedream", "pipedream_2bw", "pipeoptim"), SMALL)
ASYNCHRONOUS["spectrain"] = (*SMALL, "optimizer=sgd")


@pytest.mark.parametrize(
    ("memory", "bucket", "always", "step"),
    [(resident, 1000, 20, 0), (partial(offloaded, bucket=1000), 1000, 4, 16), (offloaded, 977, 4, 16)],
    ids=["resident", "offloaded", "last bucket short"],
)
def test_mixed_precision_states_match_layout(memory: Any, bucket: int, always: int, step: int) -> None:
    """AxoNN V-B: exactly 20 phi, and 4 phi + 16 bsize bytes; a step allocates nothing else."""
    memory = partial(offloaded, bucket=bucket) if memory is offloaded else memory
    case = gpt_case("tied", "float32", layers=4)
    options = {"optimizer": AdamW(0.01), "half": "bfloat16", "memory": memory, "bucket_numel": bucket}
    engine = engine_of(case, threads.LoopbackWorld(threads.Hub(1), 0), Grid(), **options)
    engine.train_batch(case.batch(0, 2, 1))
    state = engine.state.model_states
    phi = state.entries
    assert phi == sum(p.numel() for layer in case.layers for p in layer().parameters())
    assert sum(state.allocated().values()) == always * phi
    assert sum(state.allocated("host").values()) == (0 if always == 20 else 12 * phi)
    with MemoryTracker() as live:
        state.step(engine.state.update.rule)
    assert live.peak == step * bucket
    assert state.layout.bytes() == always * phi + step * bucket


# bytes per kept entry, per entry of a pruned weight, and per other entry
FORMULAS = {("bfloat16", "AdamW"): (24, 2, 20), ("bfloat16", "SGD"): (20, 2, 16)}
FORMULAS |= {(None, "AdamW"): (20, 4, 16), (None, "SGD"): (16, 4, 12)}


@pytest.mark.parametrize(
    ("sparsity", "what", "formula"), cells([0.0, 0.25, 0.5, 0.8, 0.9], ["weights", "all"], FORMULAS, n=5), ids=str
)
def test_pruned_states_match_layout(sparsity: float, what: str, formula: tuple[str | None, str]) -> None:
    """SAMO Equation 2 and its analogues hold exactly during a step, also with unpruned weights."""
    half, rule = formula
    case = gpt_case("tied", "float32", layers=4)
    optimizer = AdamW(0.01) if rule == "AdamW" else SGD(0.01, momentum=0.9)
    pruning = Pruning(FixedMask(random_mask(case, sparsity, what)), sparsity, what)
    options = {"optimizer": optimizer, "half": half, "memory": compressed, "pruning": pruning}
    engine = engine_of(case, threads.LoopbackWorld(threads.Hub(1), 0), Grid(), **options)
    engine.train_batch(case.batch(0, 2, 1))
    state = engine.state.model_states
    with MemoryTracker() as live:
        state.step(engine.state.update.rule)
    pruned = sum(p.numel() for p in state.parameters if id(p) in state.kept)
    kept_entries = sum(index.numel() for index in state.kept.values())
    whole = sum(p.numel() for p in state.parameters) - pruned
    assert whole == 0 if what == "all" else whole > 0
    assert abs(kept_entries / pruned - (1 - sparsity)) < 0.02
    per_kept, per_pruned, per_whole = FORMULAS[half, rule]
    expected = per_kept * kept_entries + per_pruned * pruned + per_whole * whole
    assert sum(state.allocated().values()) + live.peak == expected
    assert state.layout.bytes() == expected
    if what == "all" and rule == "AdamW" and half and sparsity >= 0.8:  # 66 and 78 % (SAMO III-D)
        assert 1 - expected / (20 * pruned) == pytest.approx({0.8: 0.66, 0.9: 0.78}[sparsity], abs=0.003)


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_predicted_memory_matches_counted(ranks: int) -> None:
    rows = few(configs(ranks), 5 if ranks == 1 else 4, ranks)
    resolved = list(map(composed, rows))
    alone = threads.LoopbackWorld(threads.Hub(1), 0)
    counts = on_ranks(ranks, count, resolved) if ranks > 1 else [count(alone, resolved)]
    for number, (row, config) in enumerate(zip(rows, resolved, strict=True)):
        check_memory(config, [measured[number] for measured in counts], f"{' '.join(row)} on {config.grid.build()}")


def test_ranks_of_one_process_are_counted_one_by_one() -> None:
    """Each is a thread, and its allocations and the messages that it receives are its own."""
    for row in few([row for row in configs(2) if "grid.inter=2" in row], 1):
        config = composed(row)
        check_memory(config, threads.run(2, partial(count_memory, config=config)), " ".join(row))


@pytest.mark.slow("a whole run by replay")
def test_a_replay_counts_the_bytes_of_each_rank(tmp_path: Path) -> None:
    """Its passes are recomputed as on ranks: a kept graph of the forward pass would hold more."""
    deep = "model.shape.layers=6", "grid.inter=3", "weights.graph=recompute", "executor.memory=true"
    rounds = "measure.warm_up=0", "measure.rounds=1", "measure.batches=1", "measure.eval_batches=0"
    (record,) = run(["executor=replay", "system=gpipe", *SMALL_TEXT, *deep, *rounds, f"reports={tmp_path}"])
    measured, predicted = (list(zip(*record.memory[kind].values(), strict=True)) for kind in ("measured", "predicted"))
    assert len(measured) == 3
    assert [sum(kinds) for kinds in measured] == pytest.approx([sum(kinds) for kinds in predicted], rel=0.05)
    assert record.metrics["peak_memory"].values == (max(map(sum, measured)),)


DELAY = 0.3  # seconds in which the first rank could send all microbatches of its next batch


def count_late(world: World, config: RunConfig) -> list[dict[str, int]]:
    """Memory of two batches, before the second of which rank 1 polls for messages."""
    system = EngineSystem(world=world, config=config)
    batch = config.data.source.build().batch(0, size=config.batch.size, seed=0, shape=config.model.shape.build())
    _, prompt = system.memory(batch)
    until = perf_counter() + DELAY * world.rank
    while perf_counter() < until:
        system.engine.state.comm.transport.progress()
    _, late = system.memory(batch)
    system.close()
    return [prompt, late]


def test_messages_that_a_rank_receives_late_are_counted() -> None:
    """No rank sends a message of a counted batch before all ranks count: else the input of a stage would be missing."""
    config = resolve([*SMALL_TEXT, "system=gpipe", "grid.inter=2"])  # every forward pass comes first
    prompt, late = on_ranks(2, count_late, config)[1]
    assert sum(late.values()) >= (1 - 0.01) * sum(prompt.values())


def count(world: World, configs: list[RunConfig]) -> list[dict[str, Any]]:
    """Counted memory of this rank for each config."""
    before = "torch._dynamo" in sys.modules  # loaded by an earlier function of these ranks
    counted = [count_memory(world, config) for config in configs]
    assert before or "torch._dynamo" not in sys.modules, "counting loads a compiler: seconds per rank"
    return counted
