"""Law 8: a resumed run is bit-identical to an uninterrupted one, for every precision, layout, rule and grid.

The resuming engines are new: they have other weights, moments and counters until they load.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.conformance.resuming import check_resumed
from suite.core.grid import Grid
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.engine.pruning.settings import Pruning
from suite.engine.system import EngineSystem
from suite.memory.layout import compressed, offloaded
from suite.pruning.early_bird import EarlyBird
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.drawn import cells, drawn, few
from tests.support.masked import FixedMask, random_mask
from tests.support.resuming import batch_of, engine_of, rank_state, trained, uninterrupted_and_resumed
from tests.support.systems import every_system

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
MOMENTUM = SGD(0.1, momentum=0.9, weight_decay=0.01)
OFFLOADED = {"memory": partial(offloaded, bucket=400, sets=2), "bucket_numel": 400, "buckets_per_reduction": 3}
SCALED = {"half": "float16", "loss_scaler": DynamicLossScaler(start=2.0**24, patience=2)}
VARIANTS: dict[str, tuple[Case, dict[str, Any]]] = {
    "float32 AdamW dropout": (gpt_case("dropout", "float32", dropout=0.3, layers=1), {"optimizer": AdamW(0.01)}),
    "float32 SGD statistics": (odd_case(torch.float32), {"optimizer": MOMENTUM}),
    "bfloat16 AdamW": (
        gpt_case("tied", "float32", layers=1),
        {"optimizer": AdamW(0.01), "half": "bfloat16", "activation_checkpointing": 1},
    ),
    "bfloat16 SGD statistics": (odd_case(torch.float32), {"optimizer": MOMENTUM, "half": "bfloat16"}),
    "float16 offloaded dropout": (
        gpt_case("dropout", "float32", dropout=0.3, layers=1),
        {"optimizer": AdamW(0.01), "half": "float16", **OFFLOADED},
    ),
    "float32 offloaded": (
        gpt_case("tied", "float32", layers=1),
        {"optimizer": Adam(0.01), **OFFLOADED, "memory": partial(offloaded, bucket=400, half=None), "clip_norm": 0.5},
    ),
}


PRUNED = gpt_case("dropout", "float32", dropout=0.3, layers=1)
AWAY = {"memory": partial(compressed, bucket=77, offloaded=True), "bucket_numel": 77, "buckets_per_reduction": 3}
TICKETS: dict[str, tuple[int, dict[str, Any]]] = {  # batches before the mask is drawn
    "float32 pruned at first": (0, {"optimizer": AdamW(0.01), "memory": compressed}),
    "float32 pruned before": (1, {"optimizer": MOMENTUM, "memory": compressed}),
    "bfloat16 pruned before": (1, {"optimizer": AdamW(0.01), "memory": compressed, "half": "bfloat16"}),
    "float16 offloaded pruned before": (1, {"optimizer": AdamW(0.01), "half": "float16", **AWAY}),
    "bfloat16 offloaded pruned after": (3, {"optimizer": AdamW(0.01), "half": "bfloat16", **AWAY}),
}


@pytest.mark.parametrize(("grid", "variant"), cells(GRIDS, TICKETS, n=2), ids=str)
def test_mask_is_saved_and_loaded(grid: Grid, variant: str, tmp_path: Path) -> None:
    """An unpruned engine loads the mask; an engine that draws it later draws the same mask."""
    drawn_after, more = TICKETS[variant]
    indices = random_mask(PRUNED, 0.8)

    def options() -> dict[str, Any]:
        return {**more, "pruning": Pruning(FixedMask(indices, drawn_after), 0.8)}

    states = list(uninterrupted_and_resumed(PRUNED, grid, tmp_path, options))
    assert any("index" in name for right, _ in states for name in right.tensors)
    for rank, (right, resumed) in enumerate(states):
        assert resumed.losses == right.losses[2:]
        right.compare(resumed, f"{variant} {grid} rank {rank}")


@pytest.mark.parametrize("after", drawn([2, 3, 5], n=1))
def test_mask_search_resumes(after: int, tmp_path: Path) -> None:
    """Masks of earlier epochs are saved, so the mask is drawn after the same batch from the same window."""
    search = Pruning(EarlyBird(epoch=1, window=3, distance=0.045), 0.8)  # each engine searches with its own copy
    options = {"optimizer": AdamW(0.003), "memory": compressed, "pruning": search}
    states = uninterrupted_and_resumed(PRUNED, Grid(inter=2), tmp_path, lambda: options, after=after, batches=8)
    for right, resumed in states:
        assert 3 <= right.counts["pruned"] < 8
        right.compare(resumed, f"after {after}")


@pytest.mark.parametrize(("grid", "variant"), cells(GRIDS, VARIANTS, n=3), ids=str)
def test_resume_is_bit_identical(grid: Grid, variant: str, tmp_path: Path) -> None:
    case, more = VARIANTS[variant]
    for rank, (right, resumed) in enumerate(uninterrupted_and_resumed(case, grid, tmp_path, lambda: more)):
        assert resumed.losses == right.losses[2:]
        right.compare(resumed, f"{variant} {grid} rank {rank}")


@pytest.mark.parametrize("grid", drawn(GRIDS, n=1), ids=str)
def test_resume_preserves_overflow_history(grid: Grid, tmp_path: Path) -> None:
    """The loss scale falls, is saved within its patience, and rises until a batch overflows again."""
    case = gpt_case("tied", "float32", layers=1)

    def options() -> dict[str, Any]:
        scaler = DynamicLossScaler(start=2.0**19, patience=2)
        return {"optimizer": AdamW(0.01), "half": "float16", "loss_scaler": scaler}

    first = threads.run(grid.size, lambda world: trained(case, world, grid, range(5), **options()))
    for right, resumed in uninterrupted_and_resumed(case, grid, tmp_path, options, after=5, batches=9):
        assert 1 <= first[0].counts["skipped"] < right.counts["skipped"]
        assert resumed.losses == right.losses[5:]
        right.compare(resumed, str(grid))


# -- every system of conf/system -------------------------------------------------------------------------------------

TINY = ["model.shape.layers=2", "model.shape.hidden=16", "model.shape.sequence=6", "model.shape.vocabulary=256"]


STREAMED = ["model.shape.tied=false", "optimizer=sgd"]


def test_every_engine_system_resumes(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, (4, 4, 7))
    batches = [(rows[:, :-1].copy(), rows[:, 1:].copy()) for rows in tokens]
    compositions = {}
    for name, overrides in every_system().items():
        if resolve(overrides).system.target != "suite.engine.system.EngineSystem":
            continue
        config = resolve([*overrides, *TINY, "batch.size=4", "grid.inter=2", "batch.microbatch=1"])
        if config.update_interval:
            config = resolve([*STREAMED, *overrides, *TINY, "batch.size=4", "grid.inter=2", "batch.microbatch=2"])
        plain = config.plain()
        parts = ["schedule", "weights", "memory", "precision", "optimizer", "update_interval"]
        parts.append("activation_checkpointing")
        compositions[str([plain[part] for part in parts])] = name, config
    assert len(compositions) >= 3

    def rank(world: Any, name: str, config: RunConfig) -> None:
        check_resumed(EngineSystem, config, batches, tmp_path / name, world, where=name)

    for name, config in few(compositions.values(), 3):
        threads.run(2, partial(rank, name=name, config=config))


# -- onto another grid -----------------------------------------------------------------------------------------------


MOVES = [
    (Grid(), Grid(inter=2)),
    (Grid(inter=2), Grid()),
    (Grid(inter=2), Grid(inter=4)),
    (Grid(data=2), Grid(inter=2, data=2)),
    (Grid(inter=2, data=2), Grid(data=2)),
]


@pytest.mark.parametrize(("move", "variant"), cells(MOVES, ["tied", "statistics"], n=3), ids=str)
def test_resume_on_other_pipeline_is_bit_identical(move: tuple[Grid, Grid], variant: str, tmp_path: Path) -> None:
    before, after = move
    case = gpt_case("tied", "float64", dropout=0.3) if variant == "tied" else odd_case(torch.float64)
    options = {"optimizer": AdamW(0.01)}
    for right, resumed in uninterrupted_and_resumed(case, after, tmp_path, lambda: options, before=before):
        right.compare(resumed, f"{before} {after}")
        assert resumed.losses == pytest.approx(right.losses[2:], rel=1e-14)  # losses are summed in the grid's order


@pytest.mark.parametrize(
    ("before", "after"),
    drawn([(Grid(), Grid(data=2)), (Grid(inter=2, data=2), Grid()), (Grid(), Grid(inter=2, data=2))], n=1),
)
def test_resume_on_other_replicas_agrees_to_rounding(before: Grid, after: Grid, tmp_path: Path) -> None:
    """Dropout masks are equal too, because the position counts microbatches of all replicas."""
    case = gpt_case("tied", "float64", dropout=0.3)
    options = {"optimizer": SGD(0.1, momentum=0.9)}
    for right, resumed in uninterrupted_and_resumed(case, after, tmp_path, lambda: options, before=before):
        assert resumed.losses == pytest.approx(right.losses[2:], rel=1e-12)
        right.compare(resumed, f"{before} {after}", tolerance=1e-12)


def test_running_statistics_are_those_of_the_first_replica(tmp_path: Path) -> None:
    case = odd_case(torch.float64)
    run = partial(trained, case, optimizer=SGD(0.1))
    first, second = threads.run(2, lambda world: run(world, Grid(data=2), range(2), save=tmp_path))
    mean = "0.running_mean"
    assert torch.equal(first.tensors[mean], second.tensors[mean])
    again = threads.run(2, lambda world: run(world, Grid(data=2), (), load=tmp_path))
    assert all(torch.equal(a.tensors[mean], b.tensors[mean]) for a, b in zip((first, second), again, strict=True))

    def elsewhere(world: Any) -> torch.Tensor:
        engine = engine_of(case, world, Grid(data=world.size), optimizer=SGD(0.1))
        (note,) = engine.load(tmp_path).notes
        assert note == f"buffers (running statistics) of all {world.size} replicas: those of replica 0 of 2"
        engine.close()
        return engine.state.stage.layers[0].running_mean

    for replicas in (1, 4):  # of 8 microbatches
        for actual in threads.run(replicas, elsewhere):
            assert torch.equal(actual, first.tensors[mean])


# -- irrelevant differences, and states of a user ---------------------------------------------------------------------


@pytest.mark.parametrize("grid", drawn(GRIDS[:3], n=1), ids=str)
def test_evaluations_and_saves_do_not_change_training(grid: Grid, tmp_path: Path) -> None:
    case = odd_case(torch.float32)
    more = {"optimizer": AdamW(0.01), "half": "bfloat16"}
    plain = threads.run(grid.size, lambda world: trained(case, world, grid, range(3), **more))

    def rank(world: Any) -> Any:
        engine = engine_of(case, world, grid, **more)
        losses, scores, others = [], [], []
        for number in range(3):
            losses.append(engine.train_batch(batch_of(case, number)))
            scores.append(engine.evaluate([batch_of(case, 9)]))
            engine.save(tmp_path)
            others.append(other := engine_of(case, world, grid, **more))
            other.load(tmp_path)
            assert other.state.evaluated == engine.state.evaluated
            assert other.evaluate([batch_of(case, 9)]) == scores[-1]
        state = rank_state(engine, losses)
        for one in (engine, *others):  # channels of threads belong to their world: a faster rank may have sent already
            one.close()
        return state

    for right, watched in zip(plain, threads.run(grid.size, rank), strict=True):
        assert watched.losses == right.losses
        right.compare(watched, str(grid))


def test_user_random_state_resumes(tmp_path: Path) -> None:
    case = gpt_case("dropout", "float32", dropout=0.3)
    torch.manual_seed(3)
    torch.rand(5)
    threads.run(1, lambda world: trained(case, world, Grid(), range(1), save=tmp_path, optimizer=SGD(0.1)))
    right = torch.rand(4)
    torch.manual_seed(99)
    threads.run(1, lambda world: trained(case, world, Grid(), (), load=tmp_path, optimizer=SGD(0.1)))
    assert torch.equal(torch.rand(4), right)
