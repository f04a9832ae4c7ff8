"""Static orders in one pass, equal to the simulator and the checker; and the comparison of schedules by them."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from baselines.gpipe import GPipe
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Kind, Op, Place
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
from suite.schedule.placement import messages_per_microbatch, places
from suite.simulate.cost.measured import Fixed
from suite.simulate.schedule_comparison import CostSetting, ScheduleComparison, ScheduleResult
from suite.simulate.static_order import RankOrders, static_order, times
from suite.simulate.worker import simulate
from tests.support.drawn import drawn
from tests.support.modelled import FREE, network
from tests.support.refusals import refused
from tests.support.schedules import flush

H1, H2, INTERLEAVED = Staircase(split=True), Staircase(lead=2, split=True), Staircase(chunks=4, lead=2)
STATIC: tuple[Schedule, ...] = (
    *(GPipe(), OneFOneB(), Staircase(lead=2), H1, H2, Staircase(chunks=2, lead=2), ZBV(), DualPipeV()),
    *(Staircase(chunks=3, split=True), LoopedBFS(chunks=2), ControllableMemory("half"), ControllableMemory("min")),
)


@pytest.mark.parametrize("schedule", drawn(STATIC, n=4, always=[ZBV()]))
def test_times_equal_the_simulator_and_the_checker(schedule: Schedule) -> None:
    """Bit for bit, with random op times and latencies."""
    rng = random.Random(str(schedule))
    costs = [Fixed(rng.random(), 1 + rng.random(), weight=rng.random()) for _ in range(3)]
    latencies = [0.0, rng.random() / 10, rng.random()]
    for ranks, microbatches in ((1, 3), (2, 5), (3, 12), (4, 8)):
        order = static_order(schedule, ranks, flush(microbatches))
        assert order is not None
        result = times(order, costs, latencies)
        for at, (cost, latency) in enumerate(zip(costs, latencies, strict=True)):
            run = simulate(schedule, Grid(inter=ranks), flush(microbatches), cost, network(latency, 1e30))
            assert (result.makespan[at], order.fronts()) == (run.makespan, run.fronts)
        seconds = [lambda op, cost=cost: 0.0 if op.kind is Kind.UPDATE else cost.compute(op) for cost in costs]
        timeline = check(schedule, ranks, flush(microbatches), cost=seconds[0])
        assert (result.makespan[0], result.stage_time[0]) == (timeline.makespan, timeline.stage_time())
        assert order.count == sum(slot.op.kind is not Kind.UPDATE for slot in timeline.slots)


def test_schedules_without_a_static_order() -> None:
    for schedule in (MessageDriven(), MessageDrivenSplit(), MessageDrivenV()):
        assert static_order(schedule, 4, flush(8)) is None
    with refused(InvalidRequest, rule="at least 2 microbatches per rank"):
        static_order(DualPipeV(), 4, flush(7))
    forward, backward = Op(0, Kind.FORWARD, 0), Op(0, Kind.BACKWARD, 0)
    last = Op(1, Kind.FORWARD, 0), Op(1, Kind.BACKWARD, 0)
    with pytest.raises(IllegalSchedule, match="deadlock: 0B0, 1F0 wait"):
        times(RankOrders((Place(0, 2), Place(1, 2)), ((backward, forward), last)), [Fixed(1.0, 2.0)], [0.0])


# -- comparison --------------------------------------------------------------------------------------------------------

EQUAL, SHORT = CostSetting("equal", (1.0, 1.0, 1.0), 0.0), CostSetting("short", (2.0, 2.0, 1.0), 0.25)


def result(
    schedule: Schedule, ranks: int, microbatches: int, setting: CostSetting = EQUAL, weight: float = 1.0
) -> ScheduleResult:
    comparison = ScheduleComparison([setting], weight)
    comparison.add("it", schedule, ranks, microbatches)
    found = comparison.answer("it", ranks, microbatches)
    assert found is not None
    return found


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_work_of_a_rank_is_constant(chunks: int) -> None:
    cost = SHORT.op_costs(chunks)
    for kinds in ((Kind.FORWARD, Kind.BACKWARD), (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT)):
        assert sum(chunks * cost.compute(Op(0, kind, 0)) for kind in kinds) == pytest.approx(2.5) == SHORT.work


@pytest.mark.parametrize(
    ("schedule", "bubble", "stage"),
    [(OneFOneB(), 21 / 96, 21 / 96), (H1, 7 / 96, 7 / 96), (H2, 7 / 96, 0.0), (ZBV(), 3.5 / 96, 0.0)],
    ids=["1F1B", "ZB-H1", "ZB-H2", "ZBV"],
)
def test_bubbles_are_the_closed_forms(schedule: Schedule, bubble: float, stage: float) -> None:
    """arXiv 2401.10241: (p - 1)(F + I + W), (p - 1)(F + I - W), and none of the stage time."""
    found = result(schedule, 8, 32)
    assert found.makespan[0] - 1 == pytest.approx(bubble)
    assert found.stage_time[0] - 1 == pytest.approx(stage, abs=1e-12)


def test_held_activations_weigh_pairs_that_meet() -> None:
    """ZB-H1 on rank r: p - r activations in flight with r owed; their two peaks never meet."""
    found = result(H1, 8, 32, weight=0.5)
    fronts = [pair for rank in range(8) for pair in check(H1, 8, flush(32)).fronts(rank)]
    assert found.held == (max(a + 0.5 * b for a, b in fronts),)
    assert result(INTERLEAVED, 4, 16).held[0] == (3 * 4 + 2 * 3 + 1) / 4
    by_hand = [frozenset({(2, 0)}), frozenset({(2, 1), (1, 4)})]
    assert [ScheduleComparison([EQUAL], weight)._held(by_hand, 2) for weight in (0.5, 1.0)] == [1.5, 2.5]


@pytest.mark.parametrize("schedule", [OneFOneB(), INTERLEAVED, ZBV(), DualPipeV(), MessageDrivenSplit()], ids=str)
def test_messages_are_those_that_the_simulator_sends(schedule: Schedule) -> None:
    run = simulate(schedule, Grid(inter=3), flush(8), Fixed(1.0, 2.0, message_bytes=1), FREE)
    assert messages_per_microbatch(places(schedule, 3)[0]) == sum(run.sent) / 8


def test_message_driven_times_are_those_of_the_checker() -> None:
    found = result(MessageDrivenSplit(), 4, 12)
    timeline = check(MessageDrivenSplit(), 4, flush(12), cost=lambda op: float(op.kind != Kind.UPDATE))
    assert found.makespan[0] * 36 == pytest.approx(timeline.makespan)
    assert found.stage_time[0] * 36 == pytest.approx(timeline.stage_time())


def test_refusals_and_schedules_above_a_cap_have_no_number() -> None:
    comparison = ScheduleComparison([EQUAL])
    for name, schedule, microbatches in (("dual", DualPipeV(), 4), ("dual", DualPipeV(), 8), ("ZB-H2", H2, 16)):
        comparison.add(name, schedule, 4, microbatches)
    assert comparison.answer("dual", 4, 4) is None
    assert {name: list(found) for name, found in comparison.refusals().items()} == {"dual": [(4, 4)]}
    assert math.isnan(comparison.fitting("dual", 4, 4, 0, None))
    assert comparison.fitting("ZB-H2", 4, 16, 0, 7) == comparison.fitting("ZB-H2", 4, 16, 0, None) > 1
    assert math.isnan(comparison.fitting("ZB-H2", 4, 16, 0, 6.9))


def test_skipped_simulations_change_no_value() -> None:
    """A whole backward pass takes as long at 1:1:1 as at 3:2:4."""
    settings = [EQUAL, replace(EQUAL, cost="long", ratio=(3.0, 2.0, 4.0)), SHORT]
    comparison = ScheduleComparison(settings)
    comparison.add("driven", MessageDriven(), 4, 8)
    assert (comparison.simulations, comparison.skipped) == (2, 1)
    for name in ("1F1B", "again"):
        comparison.add(name, OneFOneB(), 4, 8)
    assert (comparison.simulations, comparison.skipped, comparison.ops) == (5, 4, 2 * 64 + 3 * 64)
    assert comparison.answer("1F1B", 4, 8) == comparison.answer("again", 4, 8)
    driven = comparison.answer("driven", 4, 8)
    assert driven is not None
    assert list(driven.makespan) == [result(MessageDriven(), 4, 8, setting).makespan[0] for setting in settings]
    split = ScheduleComparison(settings)
    split.add("split", MessageDrivenSplit(), 4, 8)
    assert (split.simulations, split.skipped) == (3, 0)
