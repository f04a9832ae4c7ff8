"""Law 3 over real messages: ranks of an asynchronous pipeline equal their replay bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.conformance.reference import SEED
from suite.conformance.replays import compare_with_replay
from suite.core.grid import Grid
from suite.core.protocols import World
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.engine.replay.replay import Replay
from suite.weights.policy import Predict
from tests.support.cases import all_cases, gpt_case
from tests.support.drawn import drawn
from tests.support.ranks import on_ranks

MOMENTUM = SGD(0.05, momentum=0.9)
SYSTEMS: list[tuple[Any, Any]] = [
    (Stash(), Adam(0.01)),
    (Stash("keep"), MOMENTUM),
    (DoubleBuffer(), AdamW(0.01)),
    (SpecTrain(), MOMENTUM),
    (Predict(), Adam(0.01)),
    (Predict("inflight", "swap"), AdamW(0.01)),
    (Predict("authors", "keep"), MOMENTUM),
]
GRIDS = [Grid(inter=2), Grid(inter=4), Grid(inter=2, data=2)]
ROWS = [
    *((grid, "mpi", "", number) for grid in GRIDS for number in range(len(SYSTEMS))),
    *((GRIDS[0], "ordered", launcher, number) for launcher in ("", "torchrun") for number in (0, 3, 6)),
]


def compare(world: World, grid: Grid, number: int) -> list[int]:
    """Compare two epochs, of which the second starts with state. Returns the number of compared weights by model.

    The models have dropout, tuples, integers and running statistics.
    """
    policy, rule = SYSTEMS[number]
    cases = [gpt_case("dropout", "float32", tied=False, dropout=0.2, layers=2)]
    cases += [all_cases()[5]] if grid.size == 2 else []
    compared = []
    for case in cases:
        arguments = {
            "loss": case.loss,
            "optimizer": rule,
            "microbatch": case.microbatch,
            "weights": policy,
            "update_interval": grid.inter if isinstance(policy, DoubleBuffer) else 1,
            "seed": SEED,
            "grid": grid,
        }
        engine, replay = Engine(case.layers, world=world, **arguments), Replay(case.layers, **arguments)
        for first, count in ((0, 9), (50, 5)):
            batches = [case.batch(first + i, 1, grid.data) for i in range(count)]
            assert list(engine.train(batches)) == list(replay.train(batches)), (grid, policy, rule)
        compared.append(compare_with_replay(engine, replay, f"{grid} {policy} {rule}"))
        engine.close()
    return compared


@pytest.mark.ranks
@pytest.mark.parametrize(("grid", "transport", "launcher", "system"), drawn(ROWS, n=1), ids=str)
def test_ranks_equal_their_replay(grid: Grid, transport: str, launcher: str, system: int) -> None:
    for compared in on_ranks(grid.size, compare, grid, system, launcher=launcher, transport=transport):
        assert min(compared) > 0
