"""Hooks, early end and progress bar of `fit`; parts of batches per replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.nn.functional import mse_loss

from suite import SGD, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused
from tests.support.small_engines import linears, normal_batches

GRIDS = [Grid(), Grid(inter=2)]
PARTS = Grid(inter=2, data=2)
DATA = normal_batches(5, 8, 4, 3)


def engine_of(**more: Any) -> Engine:
    return Engine(linears(4, 6, 3), **({"loss": mse_loss, "optimizer": SGD(0.1), "microbatch": 2} | more))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_hook_gets_losses_and_ends_training(grid: Grid) -> None:
    expected = list(engine_of().train(DATA))
    calls: list[tuple[float, float]] = []
    losses = engine_of(grid=grid).fit(DATA, on_batch=lambda *numbers: calls.append(numbers))
    assert losses == pytest.approx(expected, rel=1e-12)
    assert [loss for loss, _ in calls] == losses
    assert all(seconds > 0 for _, seconds in calls)
    engine, seen = engine_of(grid=grid), list[float]()
    assert engine.fit(DATA, on_batch=lambda loss, seconds: seen.append(loss) or len(seen) == 3) == seen
    assert len(seen) == 3
    assert engine.fit(DATA[3:]) == pytest.approx(expected[3:], rel=1e-12)


# -- parts of batches ------------------------------------------------------------------------------------------------


def on_parts(use: Callable[[Engine, int, list[Any]], Any]) -> list[Any]:
    """Result of `use` of an engine, a rank and the parts of its replica, of every rank."""

    def rank(world: Any) -> Any:
        engine = engine_of(grid=PARTS, shard=True, world=world)
        replica = slice(4 * engine.place.replica, 4 * engine.place.replica + 4)
        return use(engine, world.rank, [(inputs[replica], targets[replica]) for inputs, targets in DATA])

    return threads.run(4, rank)


def test_parts_train_and_evaluate_as_whole_batches() -> None:
    whole = engine_of()
    expected, score = whole.fit(DATA), whole.evaluate(DATA[:2])
    for losses, ours in on_parts(lambda engine, rank, parts: (engine.fit(parts), engine.evaluate(parts[:2]))):
        assert losses == pytest.approx(expected, rel=1e-12)
        assert ours == pytest.approx(score, rel=1e-12)


def test_wrong_parts_are_refused() -> None:
    def use(engine: Engine, rank: int, parts: list[Any]) -> None:
        with refused(InvalidRequest, subject="batch 1 has other contents on rank"):
            engine.fit([(inputs + (rank == 1), targets) for inputs, targets in parts])  # rank 0 has the same part

    on_parts(use)

    def use_shorter(engine: Engine, rank: int, parts: list[Any]) -> None:
        samples = 2 if engine.place.replica else 4
        with refused(InvalidRequest, subject="other sizes or types"):
            engine.fit([(inputs[:samples], targets[:samples]) for inputs, targets in parts])

    on_parts(use_shorter)
    with refused(InvalidRequest, subject="a part of 3 samples"):
        engine_of(shard=True).train_batch((DATA[0][0][:3], DATA[0][1][:3]))
