"""Training with several stages per rank or a split backward pass equals training on one rank, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from baselines.pipedream import Stash
from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.errors import Unsupported
from suite.core.grid import Grid
from suite.core.op import EVALUATION_CAPACITY, FlushInterval
from suite.core.protocols import Schedule
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import AdamW
from suite.engine.pruning.settings import Pruning
from suite.engine.replay.replay import Replay
from suite.pruning.magnitude import Magnitude
from suite.schedule import evaluation
from suite.schedule.check import check_evaluation
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.message_driven_split import MessageDrivenV
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.placement import places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.weights.policy import Predict
from tests.support.drawn import cells, drawn
from tests.support.placed import SplitStream
from tests.support.refusals import setting
from tests.support.schedules import PLACED
from tests.support.small_engines import Batch, mse_loss, normal_batches

SCHEDULES = PLACED | {
    "interleaved_3": Staircase(chunks=3),
    "zbv_whole": ZBV(split=False),
    "axonn_zb_v_whole": MessageDrivenV(split=False),
    "looped_bfs_split": LoopedBFS(chunks=2, split=True),
}
# LoopedBFS adds the gradient of the last microbatch first, as torch does, on one rank too
ONE_RANK: dict[str, Schedule] = dict.fromkeys(SCHEDULES, OneFOneB()) | dict.fromkeys(
    ("looped_bfs", "looped_bfs_split"), LoopedBFS(chunks=1)
)
LAYERS, WIDTH, MICROBATCHES, BATCHES = 14, 6, 8, 3


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    network: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    for number in range(1, LAYERS - 1, 2):
        network[number] = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())
    return network


def batches(replicas: int) -> list[Batch]:
    return normal_batches(BATCHES, 2 * MICROBATCHES * replicas, WIDTH, WIDTH, torch.float32)


def engine_of(
    network: list[nn.Module], world: LoopbackWorld, grid: Grid, schedule: Schedule, **arguments: Any
) -> Engine:
    usual = {"loss": mse_loss, "optimizer": AdamW(lr=1e-2), "microbatch": 2}
    return Engine(copy.deepcopy(network), grid=grid, schedule=schedule, world=world, **(usual | arguments))


def losses_on(grid: Grid, schedule: Schedule, **arguments: Any) -> list[float]:
    """Losses of the batches, and the loss of an evaluation after them."""
    network, data = layers(), batches(grid.data)

    def rank(world: LoopbackWorld) -> list[float]:
        engine = engine_of(network, world, grid, schedule, **arguments)
        losses = [*engine.train(data), engine.evaluate([data[0]] * 3)]
        engine.close()
        return losses

    by_rank = threads.run(grid.size, rank)
    assert all(losses == by_rank[0] for losses in by_rank)
    return by_rank[0]


@cache
def losses_on_one_rank(name: str, replicas: int = 1) -> list[float]:
    return losses_on(Grid(data=replicas), ONE_RANK[name])


@pytest.mark.parametrize("name", drawn(SCHEDULES, n=2, always=["zbv"]))
def test_long_evaluations_end(name: str) -> None:
    """An evaluation of more microbatches than wait for a stage fills the channels around a loop or a V."""

    def evaluate(world: LoopbackWorld) -> float:
        return engine_of(network, world, Grid(inter=3), SCHEDULES[name], microbatch=1).evaluate([(data, data)])

    network, data = layers(), torch.randn(6 * EVALUATION_CAPACITY, WIDTH)
    losses = threads.run(3, evaluate)
    with torch.no_grad():
        expected = float(mse_loss(nn.Sequential(*network)(data), data))
    assert losses == pytest.approx([expected] * 3, rel=1e-6)


@pytest.mark.parametrize(("name", "ranks"), cells(SCHEDULES, [1, 2, 3, 5], n=4, always=[("zbv", 3)]))
def test_evaluation_runs_bounded_ahead(name: str, ranks: int) -> None:
    interval = FlushInterval(0, 5 * EVALUATION_CAPACITY, None, 0)
    timeline = check_evaluation(evaluation, places(SCHEDULES[name], ranks), interval)
    for place in timeline.places:
        done = dict.fromkeys(place.held_stages, 0)
        for op in timeline.order(place.rank):
            done[op.stage] += 1
            counts = [done[stage] for stage in place.held_stages]
            assert all(0 <= ahead - behind <= EVALUATION_CAPACITY for ahead, behind in pairwise(counts))
        assert {*done.values()} == {interval.microbatches}


def test_settings_that_a_placement_excludes_are_refused() -> None:
    assert losses_on(Grid(inter=2), SplitStream()) == losses_on(Grid(), OneFOneB())
    policies = [
        ("interleaved_1f1b_2", Predict()),
        ("interleaved_1f1b_2", Stash()),
        ("zb_h1", Predict()),
        ("zb_h1", Stash()),
    ]
    rows: list[tuple[str, Schedule, dict[str, Any]]] = [
        ("update_interval", SplitStream(), {"update_interval": 1}),
        ("pruning", SCHEDULES["zbv"], {"pruning": Pruning(Magnitude(), sparsity=0.5)}),
        *(("weights", SCHEDULES[name], {"weights": policy, "update_interval": 1}) for name, policy in policies),
    ]
    for key, schedule, arguments in rows:
        with pytest.raises(Unsupported) as refused:
            losses_on(Grid(inter=2), schedule, **arguments)
        assert setting(refused.value)[0] == key, f"{schedule} {arguments}"


@pytest.mark.parametrize(("loaded", "ranks"), cells(["zbv", "interleaved_1f1b_2", "zb_h1"], [1, 2], n=2))
def test_a_checkpoint_resumes_on_another_placement(loaded: str, ranks: int, tmp_path: Path) -> None:
    network, data = [nn.BatchNorm1d(WIDTH), *layers()], batches(1)

    def run(grid: Grid, schedule: Schedule, part: Sequence[Any], *, load: bool, folder: Path) -> list[float]:
        def rank(world: LoopbackWorld) -> list[float]:
            engine = engine_of(network, world, grid, schedule)
            if load:
                engine.load(folder)
            losses = list(engine.train(part))
            if not load:
                engine.save(folder)
            return [*losses, engine.evaluate(data)]

        losses: list[list[float]] = threads.run(grid.size, rank)
        return losses[0]

    whole = run(Grid(), OneFOneB(), data, load=False, folder=tmp_path / "whole")
    run(Grid(inter=2), SCHEDULES["interleaved_1f1b_2"], data[:1], load=False, folder=tmp_path / "part")
    resumed = run(Grid(inter=ranks), SCHEDULES[loaded], data[1:], load=True, folder=tmp_path / "part")
    assert resumed == whole[1:]


@pytest.mark.parametrize("name", drawn(["interleaved_1f1b_2", "zbv", "zb_h1", "axonn_zb"], n=1, always=["zbv"]))
def test_replay_equals_ranks(name: str) -> None:
    network, data, grid = layers(), batches(1), Grid(inter=2)
    settings = {"loss": mse_loss, "optimizer": AdamW(lr=1e-2), "microbatch": 2, "grid": grid}

    def rank(world: LoopbackWorld) -> Any:
        engine = engine_of(network, world, grid, SCHEDULES[name])
        engine.train_batch(data[0])
        return engine.passes

    right, passes = losses_on_one_rank(name), threads.run(2, rank)
    replay = Replay(network, schedule=SCHEDULES[name], **settings)
    assert list(replay.train(data[:1])) == right[:1]
    assert [engine.passes for engine in replay.engines] == passes
    assert [*replay.train(data[1:]), replay.evaluate([data[0]] * 3)] == right[1:]
