"""Training with several stages per rank or a split backward pass equals training on one rank, bit for bit."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from baselines.pipedream import Stash
from suite.comm.p2p import threads
from suite.comm.p2p.threads import LoopbackWorld
from suite.core.errors import Unsupported
from suite.core.grid import Grid
from suite.core.op import EVALUATION_CAPACITY, FlushInterval
from suite.core.protocols import Schedule, WeightPolicy
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import AdamW
from suite.engine.pruning import Pruning
from suite.engine.recorded_order import Passes
from suite.engine.replay import Replay
from suite.pruning.magnitude import Magnitude
from suite.schedule import evaluation
from suite.schedule.check import check_evaluation
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.message_driven_split import MessageDrivenV
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.placement import places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.weights.policy import Latest, Predict
from tests.support.placed import PLACED, SplitStream

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


def layers(*, tied: bool = False, dropout: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(0)
    network: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    for number in range(1, LAYERS - 1, 2):
        network[number] = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Dropout(dropout))
    if tied:
        network[-1].weight = network[0].weight
    return network


def batches(replicas: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(2 * MICROBATCHES * replicas, WIDTH, generator=generator),
            torch.randn(2 * MICROBATCHES * replicas, WIDTH, generator=generator),
        )
        for _ in range(BATCHES)
    ]


def train(
    world: LoopbackWorld, network: list[nn.Module], grid: Grid, schedule: Schedule, **arguments: Any
) -> list[float]:
    """Losses of the batches, and the loss of an evaluation after them."""
    engine = Engine(
        copy.deepcopy(network),
        loss=mse_loss,
        optimizer=AdamW(lr=1e-2),
        microbatch=2,
        grid=grid,
        schedule=schedule,
        world=world,
        **arguments,
    )
    data = batches(grid.data)
    losses = list(engine.train(data))
    losses.append(engine.evaluate([data[0]] * 3))
    engine.close()
    return losses


def losses_on(
    grid: Grid, schedule: Schedule, *, tied: bool = False, dropout: float = 0.0, **arguments: Any
) -> list[float]:
    network = layers(tied=tied, dropout=dropout)
    by_rank = threads.run(grid.size, lambda world: train(world, network, grid, schedule, **arguments), deadline=60)
    assert all(losses == by_rank[0] for losses in by_rank)
    return by_rank[0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_losses_equal_one_rank(name: str, ranks: int) -> None:
    assert losses_on(Grid(inter=ranks), SCHEDULES[name]) == losses_on(Grid(), ONE_RANK[name])


@pytest.mark.parametrize(
    "arguments",
    [
        {"tied": True},
        {"dropout": 0.2},
        {"half": "bfloat16"},
        {"clip_norm": 0.1},
        {"weights": Latest("recompute")},
        {"bucket_numel": 40},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
@pytest.mark.parametrize("name", ["interleaved", "zb_h2", "zbv", "dual_pipe_v"])
def test_variants_equal_one_rank(name: str, arguments: dict[str, Any]) -> None:
    losses = losses_on(Grid(inter=2), SCHEDULES[name], **arguments)
    assert losses == losses_on(Grid(), OneFOneB(), **arguments)


@pytest.mark.parametrize("name", SCHEDULES)
def test_replicas_equal_replicas_of_one_stage(name: str) -> None:
    losses = losses_on(Grid(inter=2, data=2), SCHEDULES[name], tied=True)
    assert losses == losses_on(Grid(data=2), ONE_RANK[name], tied=True)


@pytest.mark.parametrize("name", ["interleaved", "zb_h1", "zbv"])
def test_replay_equals_ranks(name: str) -> None:
    replay = Replay(
        layers(), loss=mse_loss, optimizer=AdamW(lr=1e-2), microbatch=2, grid=Grid(inter=2), schedule=SCHEDULES[name]
    )
    data = batches(1)
    losses = [*replay.train(data), replay.evaluate([data[0]] * 3)]
    assert losses == losses_on(Grid(inter=2), SCHEDULES[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_long_evaluations_end(name: str) -> None:
    """An evaluation of more microbatches than wait for a stage fills the channels around a loop or a V."""

    def evaluate(world: LoopbackWorld) -> float:
        engine = Engine(
            copy.deepcopy(network),
            loss=mse_loss,
            optimizer=AdamW(lr=1e-2),
            microbatch=1,
            grid=Grid(inter=3),
            schedule=SCHEDULES[name],
            world=world,
        )
        return engine.evaluate([(data, data)])

    network, data = layers(), torch.randn(6 * EVALUATION_CAPACITY, WIDTH)
    losses = threads.run(3, evaluate, deadline=60)
    with torch.no_grad():
        expected = float(mse_loss(nn.Sequential(*network)(data), data))
    assert losses == pytest.approx([expected] * 3, rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_evaluation_runs_bounded_ahead(schedule: Schedule, ranks: int) -> None:
    interval = FlushInterval(0, 5 * EVALUATION_CAPACITY, None, 0)
    timeline = check_evaluation(evaluation, places(schedule, ranks), interval)
    for place in timeline.places:
        done = dict.fromkeys(place.held_stages, 0)
        for op in timeline.order(place.rank):
            done[op.stage] += 1
            counts = [done[stage] for stage in place.held_stages]
            assert all(0 <= ahead - behind <= EVALUATION_CAPACITY for ahead, behind in pairwise(counts))
        assert {*done.values()} == {interval.microbatches}


@pytest.mark.parametrize("name", ["interleaved", "zb_h1", "zb_h2", "zbv", "axonn_zb"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_follow_each_other_without_a_drain(name: str, replicas: int) -> None:
    """With an update per batch no pass reads other weights, so a stream has the losses of drained batches."""
    grid = Grid(inter=2, data=replicas)
    losses = losses_on(grid, SCHEDULES[name], update_interval=MICROBATCHES)
    assert losses == losses_on(grid, SCHEDULES[name])
    if replicas == 1:
        assert losses == losses_on(Grid(), OneFOneB())


def test_updates_between_the_passes_of_a_microbatch_are_refused() -> None:
    assert losses_on(Grid(inter=2), SplitStream()) == losses_on(Grid(), OneFOneB())
    with pytest.raises(Unsupported) as refused:
        losses_on(Grid(inter=2), SplitStream(), update_interval=1)
    assert (refused.value.key, refused.value.value) == ("update_interval", 1)


@pytest.mark.parametrize("policy", [Predict(), Stash()], ids=["predict", "stash"])
@pytest.mark.parametrize("name", ["interleaved", "zb_h1"])
def test_asynchronous_policies_are_refused(name: str, policy: WeightPolicy) -> None:
    with pytest.raises(Unsupported) as refused:
        losses_on(Grid(inter=2), SCHEDULES[name], weights=policy, update_interval=1)
    assert refused.value.key == "weights"


def test_a_mask_over_several_stages_of_a_rank_is_refused() -> None:
    with pytest.raises(Unsupported) as refused:
        losses_on(Grid(inter=2), SCHEDULES["zbv"], pruning=Pruning(Magnitude(), sparsity=0.5))
    assert refused.value.key == "pruning"


@pytest.mark.parametrize("loaded", ["zbv", "interleaved", "zb_h1"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_resumes_on_another_placement(loaded: str, ranks: int, tmp_path: Path) -> None:
    network, data = [nn.BatchNorm1d(WIDTH), *layers()], batches(1)

    def run(grid: Grid, schedule: Schedule, part: Sequence[Any], *, load: bool) -> list[float]:
        def rank(world: LoopbackWorld) -> list[float]:
            engine = Engine(
                copy.deepcopy(network),
                loss=mse_loss,
                optimizer=AdamW(lr=1e-2),
                microbatch=2,
                grid=grid,
                schedule=schedule,
                world=world,
            )
            if load:
                engine.load(tmp_path)
            losses = list(engine.train(part))
            if not load:
                engine.save(tmp_path)
            return [*losses, engine.evaluate(data)]

        losses: list[list[float]] = threads.run(grid.size, rank, deadline=60)
        return losses[0]

    whole = run(Grid(), OneFOneB(), data, load=False)
    shutil.rmtree(tmp_path)
    run(Grid(inter=2), SCHEDULES["interleaved"], data[:1], load=False)
    assert run(Grid(inter=ranks), SCHEDULES[loaded], data[1:], load=True) == whole[1:]


@pytest.mark.parametrize("name", ["interleaved", "zbv", "axonn_zb"])
def test_a_recorded_order_replays(name: str) -> None:
    network, data = layers(), batches(1)[:1]

    def rank(world: LoopbackWorld) -> tuple[list[float], Passes]:
        engine = Engine(
            copy.deepcopy(network),
            loss=mse_loss,
            optimizer=AdamW(lr=1e-2),
            microbatch=2,
            grid=Grid(inter=2),
            schedule=SCHEDULES[name],
            world=world,
        )
        return list(engine.train(data)), engine.passes

    ranks = threads.run(2, rank, deadline=60)
    recorded = [passes for _, passes in ranks]
    replay = Replay(
        network, loss=mse_loss, optimizer=AdamW(lr=1e-2), microbatch=2, grid=Grid(inter=2), recorded=recorded
    )
    assert list(replay.train(data)) == ranks[0][0]
    assert [engine.passes for engine in replay.engines] == recorded
