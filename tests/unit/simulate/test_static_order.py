"""Static orders in one pass: equal to the simulator and the checker, for every schedule."""

from __future__ import annotations

import random

import pytest

from baselines.gpipe import GPipe
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, Place
from suite.core.protocols import Schedule
from suite.schedule import (
    ZBV,
    ControllableMemory,
    DualPipeV,
    LoopedBFS,
    MessageDriven,
    MessageDrivenSplit,
    MessageDrivenV,
    OneFOneB,
    Staircase,
)
from suite.schedule.check import check
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.static_order import RankOrders, static_order, times
from suite.simulate.worker import NetworkModel, simulate
from tests.support.refusals import refused

STATIC: tuple[Schedule, ...] = (
    *(GPipe(), OneFOneB(), Staircase(lead=2), Staircase(lead=1, split=True), Staircase(lead=2, split=True)),
    *(Staircase(chunks=2, lead=2), Staircase(chunks=3, lead=1, split=True), LoopedBFS(chunks=2), ZBV()),
    *(ControllableMemory("half"), ControllableMemory("min"), DualPipeV()),
)


@pytest.mark.parametrize("schedule", STATIC, ids=str)
def test_times_equal_the_simulator(schedule: Schedule) -> None:
    """Bit for bit, with random op times and latencies."""
    rng = random.Random(str(schedule))
    costs = [Fixed(rng.random(), 1 + rng.random(), weight=rng.random()) for _ in range(3)]
    latencies = [0.0, rng.random() / 10, rng.random()]
    for ranks, microbatches in ((1, 3), (2, 5), (3, 12), (4, 8)):
        interval = FlushInterval(0, microbatches, None, 0)
        order = static_order(schedule, ranks, interval)
        assert order is not None
        result = times(order, costs, latencies)
        for at, (cost, latency) in enumerate(zip(costs, latencies, strict=True)):
            network = NetworkModel(lambda first, second, latency=latency: Link(latency, 1e30))
            run = simulate(schedule, Grid(inter=ranks), interval, cost, network)
            assert result.makespan[at] == run.makespan
            assert order.fronts() == run.fronts


@pytest.mark.parametrize("schedule", STATIC, ids=str)
def test_stage_time_equals_the_checker(schedule: Schedule) -> None:
    interval, cost = FlushInterval(0, 8, None, 0), Fixed(2.0, 3.0, weight=1.0)
    timeline = check(schedule, 4, interval, cost=lambda op: 0.0 if op.kind is Kind.UPDATE else cost.compute(op))
    order = static_order(schedule, 4, interval)
    assert order is not None
    result = times(order, [cost], [0.0])
    assert result.makespan == (timeline.makespan,)
    assert result.stage_time == (timeline.stage_time(),)
    assert order.count == sum(slot.op.kind is not Kind.UPDATE for slot in timeline.slots)


def test_stage_time_leaves_out_the_wait_for_the_first_message() -> None:
    """Rank r of ZB-H2 starts r forward passes after rank 0, and no rank waits after its start."""
    order = static_order(Staircase(lead=2, split=True), 4, FlushInterval(0, 8, None, 0))
    assert order is not None
    result = times(order, [Fixed(1.0, 2.0, weight=1.0)], [0.0])
    assert (result.makespan, result.stage_time) == ((27.0,), (24.0,))


@pytest.mark.parametrize("schedule", [MessageDriven(), MessageDrivenSplit(), MessageDrivenV()], ids=str)
def test_a_message_driven_schedule_has_no_static_order(schedule: Schedule) -> None:
    assert static_order(schedule, 4, FlushInterval(0, 8, None, 0)) is None


def test_a_refusal_reaches_the_caller() -> None:
    with refused(InvalidRequest, rule="at least 2 microbatches per rank"):
        static_order(DualPipeV(), 4, FlushInterval(0, 7, None, 0))


def test_a_deadlock_names_the_waiting_ops() -> None:
    places = Place(0, 2), Place(1, 2)
    forward, backward = Op(0, Kind.FORWARD, 0), Op(0, Kind.BACKWARD, 0)
    last = Op(1, Kind.FORWARD, 0), Op(1, Kind.BACKWARD, 0)
    with pytest.raises(IllegalSchedule, match="deadlock: 0B0, 1F0 wait"):
        times(RankOrders(places, ((backward, forward), last)), [Fixed(1.0, 2.0)], [0.0])
