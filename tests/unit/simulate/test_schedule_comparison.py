"""Comparison of schedules: equal work, three bubbles, memory, messages, refusals and skipped simulations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule
from suite.schedule import ZBV, DualPipeV, MessageDriven, MessageDrivenSplit, OneFOneB, Staircase
from suite.schedule.check import check
from suite.schedule.placement import places
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.schedule_comparison import CostSetting, ScheduleComparison, ScheduleResult, messages_per_microbatch
from suite.simulate.worker import NetworkModel, simulate

EQUAL, SHORT = CostSetting("equal", (1.0, 1.0, 1.0), 0.0), CostSetting("short", (2.0, 2.0, 1.0), 0.25)
H1, H2 = Staircase(lead=1, split=True), Staircase(lead=2, split=True)
INTERLEAVED = Staircase(chunks=4, lead=2)


def answer_of(
    schedule: Schedule, ranks: int, microbatches: int, *settings: CostSetting, weight: float = 1.0
) -> ScheduleResult:
    comparison = ScheduleComparison(settings, weight)
    comparison.add("it", schedule, ranks, microbatches)
    answer = comparison.answer("it", ranks, microbatches)
    assert answer is not None
    return answer


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_work_of_a_rank_is_constant(chunks: int) -> None:
    cost = SHORT.op_costs(chunks)
    whole = sum(chunks * cost.compute(Op(0, kind, 0)) for kind in (Kind.FORWARD, Kind.BACKWARD))
    split = sum(chunks * cost.compute(Op(0, kind, 0)) for kind in (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT))
    assert whole == pytest.approx(SHORT.work) == pytest.approx(split) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("schedule", "bubble", "stage"),
    [(OneFOneB(), 21 / 96, 21 / 96), (H1, 7 / 96, 7 / 96), (H2, 7 / 96, 0.0), (ZBV(), 3.5 / 96, 0.0)],
    ids=["1F1B", "ZB-H1", "ZB-H2", "ZBV"],
)
def test_bubbles_are_the_closed_forms(schedule: Schedule, bubble: float, stage: float) -> None:
    """arXiv 2401.10241: (p - 1)(F + I + W), (p - 1)(F + I - W), and none of the stage time."""
    answer = answer_of(schedule, 8, 32, EQUAL)
    assert answer.makespan[0] - 1 == pytest.approx(bubble)
    assert answer.stage_time[0] - 1 == pytest.approx(stage, abs=1e-12)


def test_held_weighs_pairs_that_meet() -> None:
    """ZB-H1 on rank r: p - r activations in flight with r owed; their two peaks never meet."""
    answer = answer_of(H1, 8, 32, EQUAL, weight=0.5)
    assert (answer.in_flight, answer.owed) == ((8.0,), (8.0,))
    timeline = check(H1, 8, FlushInterval(0, 32, None, 0))
    assert answer.held[0] == max(a + 0.5 * b for rank in range(8) for a, b in timeline.fronts(rank))
    assert answer_of(INTERLEAVED, 4, 16, EQUAL).in_flight[0] == (3 * 4 + 2 * 3 + 1) / 4


def test_owed_activations_count_with_their_share() -> None:
    fronts = [frozenset({(2, 0)}), frozenset({(2, 1), (1, 4)})]
    assert ScheduleComparison([EQUAL], 0.5)._memory(fronts, 2) == (1.0, 2.0, 1.5)
    assert ScheduleComparison([EQUAL], 1.0)._memory(fronts, 2) == (1.0, 2.0, 2.5)


@pytest.mark.parametrize("schedule", [OneFOneB(), INTERLEAVED, ZBV(), DualPipeV(), MessageDrivenSplit()], ids=str)
def test_messages_are_those_that_the_simulator_sends(schedule: Schedule) -> None:
    cost, network = Fixed(1.0, 2.0, message_bytes=1), NetworkModel(lambda first, second: Link(0.0, 1e30))
    run = simulate(schedule, Grid(inter=3), FlushInterval(0, 8, None, 0), cost, network)
    assert messages_per_microbatch(places(schedule, 3)[0]) == sum(run.sent) / 8


def test_message_driven_times_are_those_of_the_checker() -> None:
    answer = answer_of(MessageDrivenSplit(), 4, 12, EQUAL)
    timeline = check(
        MessageDrivenSplit(), 4, FlushInterval(0, 12, None, 0), cost=lambda op: float(op.kind != Kind.UPDATE)
    )
    assert answer.makespan[0] * 36 == pytest.approx(timeline.makespan)
    assert answer.stage_time[0] * 36 == pytest.approx(timeline.stage_time())


def test_a_refusal_is_kept_with_its_text() -> None:
    comparison = ScheduleComparison([EQUAL])
    comparison.add("dual", DualPipeV(), 4, 4)
    comparison.add("dual", DualPipeV(), 4, 8)
    assert comparison.answer("dual", 4, 4) is None
    assert list(comparison.refusals()["dual"]) == [(4, 4)]
    assert "at least 2 microbatches per rank" in comparison.refusals()["dual"][4, 4]
    assert math.isnan(comparison.fitting("dual", 4, 4, 0, None))


def test_a_cap_excludes_what_holds_more() -> None:
    comparison = ScheduleComparison([EQUAL])
    comparison.add("ZB-H2", H2, 4, 16)
    assert comparison.fitting("ZB-H2", 4, 16, 0, 7) == comparison.fitting("ZB-H2", 4, 16, 0, None) > 1
    assert math.isnan(comparison.fitting("ZB-H2", 4, 16, 0, 6.9))


def test_skipped_simulations_change_no_value() -> None:
    """A whole backward pass takes as long at 1:1:1 as at 3:2:4."""
    settings = [EQUAL, replace(EQUAL, cost="long", ratio=(3.0, 2.0, 4.0)), SHORT]
    comparison = ScheduleComparison(settings)
    comparison.add("driven", MessageDriven(), 4, 8)
    assert (comparison.simulations, comparison.skipped) == (2, 1)
    comparison.add("1F1B", OneFOneB(), 4, 8)
    comparison.add("again", OneFOneB(), 4, 8)
    assert (comparison.simulations, comparison.skipped) == (5, 4)
    assert comparison.ops == 2 * 64 + 3 * 64
    assert comparison.answer("1F1B", 4, 8) == comparison.answer("again", 4, 8)
    alone = [answer_of(MessageDriven(), 4, 8, setting).makespan[0] for setting in settings]
    driven = comparison.answer("driven", 4, 8)
    assert driven is not None
    assert list(driven.makespan) == alone
    split = ScheduleComparison(settings)
    split.add("split", MessageDrivenSplit(), 4, 8)
    assert (split.simulations, split.skipped) == (3, 0)
