"""Law 2 on loopback: every flushing schedule on every grid gives the one-process gradients, bit for bit.

tests/distributed runs the same check on MPI ranks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from baselines.gpipe import GPipe
from suite.comm.p2p import threads
from suite.config.compose import resolve
from suite.conformance.reference import SEED, Reference, as_tuple
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.engine.random_state import drawing, initial
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.weights import Latest
from tests.support.cases import Case, all_cases, gpt_case, recurrent_cases, shared_case
from tests.support.drawn import cells, few
from tests.support.laws import check_gradients, engine_of, gradients_of
from tests.support.systems import every_system

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(data=2, inter=2)]
OTHER_ORDERS = [
    MessageDriven(pipeline_limit=5, prefer="forward"),
    MessageDriven(cap=1),
    MessageDriven(pipeline_limit=1),
    OneFOneB(),
]


@cache
def of_every_system() -> list[tuple[str, Schedule]]:
    """Schedules of conf/system that run on the engine."""
    names: dict[Schedule, str] = {}
    for name, overrides in every_system().items():
        config = resolve(overrides)
        if config.system.target == "suite.engine.system.EngineSystem":
            names.setdefault(config.schedule.build(), name)
    return [(name, schedule) for schedule, name in names.items()]


CASES = all_cases()
TIED_GRIDS = [*GRIDS[:2], Grid(inter=3), Grid(inter=4), GRIDS[3]]


def label(value: Any) -> str:
    return value.name if isinstance(value, Case) else str(value)


def check(case: Case, grid: Grid, schedule: Schedule, **more: Any) -> list[int]:
    return threads.run(grid.size, lambda world: check_gradients(case, grid, schedule, world, **more))


@pytest.mark.parametrize(("case", "grid"), cells(CASES, GRIDS, n=3), ids=label)
def test_every_system_matches_one_process_gradients(case: Case, grid: Grid) -> None:
    for name, schedule in few(of_every_system(), 3, case.name, grid):
        assert sum(check(case, grid, schedule)) > 0, name


@pytest.mark.parametrize(
    ("schedule", "grid", "case"),
    cells(OTHER_ORDERS, (Grid(inter=3), Grid(inter=4), Grid(inter=2, data=2)), (CASES[0], CASES[4]), n=2),
    ids=label,
)
def test_gradients_match_for_other_schedules(schedule: Schedule, grid: Grid, case: Case) -> None:
    check(case, grid, schedule)


@pytest.mark.parametrize(
    ("grid", "schedule"), cells(TIED_GRIDS, (MessageDriven(), ZBV(), Staircase(chunks=2)), n=3), ids=str
)
def test_gradients_match_with_ties_between_blocks(grid: Grid, schedule: Schedule) -> None:
    check(shared_case("float32"), grid, schedule)


@pytest.mark.parametrize(
    ("schedule", "case", "grid"),
    cells((MessageDriven(), GPipe()), (gpt_case("dropout", "float64", dropout=0.3), CASES[4]), GRIDS[:2], n=2),
    ids=label,
)
def test_recomputation_repeats_dropout_and_preserves_statistics(schedule: Schedule, case: Case, grid: Grid) -> None:
    check(case, grid, schedule, weights=Latest("recompute"))


@pytest.mark.parametrize(
    ("case", "grid"), cells(recurrent_cases(), (Grid(inter=4), Grid(inter=2, data=2)), n=2), ids=label
)
def test_gradients_of_recurrent_networks(case: Case, grid: Grid) -> None:
    for schedule, weights in ((OneFOneB(), None), (MessageDriven(), Latest("recompute"))):
        assert sum(check(case, grid, schedule, weights=weights)) > 0


def test_more_than_two_replicas_agree_to_rounding() -> None:
    check(CASES[0], Grid(data=4), MessageDriven(), tolerance=1e-12)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_gradients_match_plain_pytorch_on_whole_batch(grid: Grid) -> None:
    """One backward pass over the whole batch, one shared tied weight: equal to 1e-12."""
    case = gpt_case("tied", "float64")
    batch = case.batch(0, 6, grid.data)
    layers = []
    for number, make in enumerate(case.layers):
        with drawing(*initial(SEED, number)):
            layers.append(make())
    first, first_name, last, last_name = case.ties[0]
    shared = layers[first].get_parameter(first_name)
    setattr(layers[last], last_name, shared)
    model = torch.nn.Sequential(*layers)
    case.loss(model(batch[0]), batch[1]).backward()

    def rank(world: threads.LoopbackWorld) -> None:
        engine = engine_of(case, grid, MessageDriven(), world)
        engine.train_batch(batch)
        weights = [p for k in engine.state.settings.split[engine.place.stage] for p in layers[k].parameters()]
        for got, right in zip(gradients_of(engine), weights, strict=True):
            assert (got - right.grad.flatten()).abs().max() < 1e-12
        engine.close()

    threads.run(grid.size, rank)


def test_gradients_without_a_step_change_nothing() -> None:
    case = gpt_case("dropout", "float64", dropout=0.2)

    def rank(world: threads.LoopbackWorld) -> None:
        engine = engine_of(case, Grid(inter=2), MessageDriven(), world)
        batch = case.batch(0, 4, 1)
        once, again = engine.gradients(batch), engine.gradients(batch)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
        assert engine.state.updates == engine.state.microbatches == 0
        engine.train_batch(batch)
        assert all(torch.equal(a.flatten(), b) for a, b in zip(once, gradients_of(engine), strict=True))
        engine.close()

    threads.run(2, rank)


def test_reference_depends_on_summation_order() -> None:
    """The check can fail: another number of replicas sums in another order and is not bit-equal."""
    case = gpt_case("untied", "float64", tied=False)
    batch = case.batch(0, 6, 2)
    _, one = Reference(case, 1).gradients(batch, 0)
    _, two = Reference(case, 2).gradients(batch, 0)
    assert not all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert as_tuple(batch[0])[0].shape[0] == 24
