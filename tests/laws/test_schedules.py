"""Laws 1 and 5 for every schedule, without time.

A schedule that breaks one of them would train wrongly or hang on real ranks, where nothing points at the culprit; here
a broken one must be named before any rank starts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.gpipe import GPipe
from suite.conformance.orders import MICROBATCHES, STAGES, assert_closed_form, assert_legal, check_every_size, costs
from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB, evaluation
from suite.schedule.check import check, check_evaluation, check_message_order
from suite.schedule.placement import places
from tests.support.drawn import drawn
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, STATIC, Script, flush, serves

PLAIN: tuple[Schedule, ...] = (
    *(GPipe(), OneFOneB(), MessageDriven(), MessageDriven(prefer="forward"), MessageDriven(pipeline_limit=1)),
    *(MessageDriven(pipeline_limit=3, prefer="forward"), MessageDriven(pipeline_limit=6, cap=2)),
)
SPEEDS = (0.0, 0.5, 1.0, 3.7)  # messages arrive in any order that ranks could see

schedules = st.sampled_from([GPipe(), OneFOneB()]) | st.builds(
    MessageDriven,
    pipeline_limit=st.none() | st.integers(1, 12),
    cap=st.none() | st.integers(1, 6),
    prefer=st.sampled_from(["backward", "forward"]),
)
works = st.builds(
    FlushInterval,
    first=st.integers(0, 100),
    microbatches=st.integers(1, 32),
    update_interval=st.none() | st.integers(1, 34),
    update=st.integers(0, 20),
)


@pytest.mark.parametrize("schedule", drawn(PLAIN, n=1))
def test_every_size_is_legal(schedule: Schedule) -> None:
    assert check_every_size(schedule, None) == 8 * 32


@pytest.mark.parametrize("name", drawn(SCHEDULES, n=3))
def test_placed_schedules_are_legal_at_any_speed(name: str) -> None:
    """Numbers of microbatches around the multiples of the ranks, where schedules change their phases."""
    schedule = SCHEDULES[name]
    for ranks in STAGES:
        around = {multiple * ranks + more for multiple in (1, 2, 3) for more in (-1, 0, 1)}
        for microbatches in sorted({1, 2, *around} - {0}):
            draw = random.Random(100 * ranks + microbatches).choice
            for interval in (flush(microbatches), FlushInterval(5, microbatches, 2 * ranks, 3)):
                if serves(schedule, ranks, interval.group_size(interval.end - 1)):
                    timeline = check(schedule, ranks, interval, cost=lambda _, draw=draw: draw(SPEEDS))
                    assert_legal(timeline, schedule, interval)
                    if name in STATIC:
                        check_message_order(timeline)


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(1, 8), works, st.integers(0, 2**32))
def test_any_work_at_any_speed_is_legal(schedule: Schedule, stages: int, interval: FlushInterval, seed: int) -> None:
    """Every op takes its own time, so that messages come in any order that real ranks could see."""
    clock = random.Random(seed)
    assert_legal(check(schedule, stages, interval, cost=lambda _: clock.choice(SPEEDS)), schedule, interval)


def test_promises_are_tight() -> None:
    for schedule in (GPipe(), OneFOneB()):
        for stages in STAGES:
            interval = FlushInterval(first=5, microbatches=12, update_interval=None, update=2)
            promised = tuple(schedule.in_flight(Place(stage, stages), interval) for stage in range(stages))
            assert check(schedule, stages, interval).peak == promised
    assert check(MessageDriven(pipeline_limit=6), 4, flush(16)).peak == (6, 6, 4, 1)
    assert check(MessageDriven(pipeline_limit=6, cap=2), 4, flush(16)).peak == (2, 2, 2, 1)


@pytest.mark.parametrize("prefer", ["backward", "forward"])
def test_the_last_stage_turns_at_once(prefer: str) -> None:
    """AxoNN Algorithm 2, lines 15-17: a forward at the last stage is followed by its own backward."""
    timeline = check(MessageDriven(pipeline_limit=9, prefer=prefer), 3, flush(6))  # type: ignore[arg-type]
    assert "".join(op.kind for op in timeline.order(2)) == "FB" * 6 + "U"


def test_every_stage_evaluates_every_microbatch_once() -> None:
    for stages in STAGES:
        for interval in (flush(1), FlushInterval(7, 5, None, 0)):
            timeline = check_evaluation(evaluation, places(OneFOneB(), stages), interval)
            for stage in range(stages):
                expected = [Op(stage, Kind.EVALUATE, index) for index in range(interval.first, interval.end)]
                assert list(timeline.order(stage)) == expected


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("microbatches", [1, 8, 11])
def test_version_gaps_of_one_f_one_b(every: int, microbatches: int) -> None:
    """Before the forward of microbatch j (from 0) a stage has run max(0, j - warm-up) backwards, before its backward j;
    the gap is the number of full groups in between, and a short last group adds none because it closes at the end."""
    for stages in STAGES:
        timeline = check(OneFOneB(), stages, FlushInterval(10, microbatches, every, 4))
        for stage, gaps in enumerate(timeline.gaps):
            warm_up = stages - 1 - stage
            assert gaps == tuple(j // every - max(0, j - warm_up) // every for j in range(microbatches))
        assert not any(map(any, check(OneFOneB(), stages, flush(microbatches)).gaps)), "a flush has no gaps"


# -- law 5, untimed: the closed form of the bubble ---------------------------------------------------------------------


@pytest.mark.parametrize("stages", drawn(STAGES, n=3))
def test_bubble_at_unit_cost(stages: int) -> None:
    for microbatches in MICROBATCHES:
        for schedule in (GPipe(), OneFOneB(), MessageDriven(pipeline_limit=stages), MessageDriven()):
            assert_closed_form(schedule, stages, microbatches, 1.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.integers(1, 8), st.integers(1, 32), st.integers(1, 4096), st.sampled_from([1, 2, 0.37]))
def test_bubble_at_any_cost(driven: bool, stages: int, microbatches: int, k: int, ratio: float) -> None:
    """Times are multiples of 1/1024, which add without rounding: a tie decided by rounding is another schedule."""
    forward = k / 1024
    if driven and ratio != 0.37:
        assert_closed_form(MessageDriven(pipeline_limit=stages), stages, microbatches, forward, ratio * forward)
    for schedule in (GPipe(), OneFOneB()):
        assert_closed_form(schedule, stages, microbatches, forward, ratio * forward)


def test_low_limit_makes_message_driven_order_miss_closed_form() -> None:
    """Where a backward is no whole number of forwards, a limit of the stages costs time; two more microbatches win it
    back (AxoNN IV-A sets the limit to the stages and says nothing of it)."""
    cost, closed = costs(0.375, 0.625), (16 + 5 - 1) * 1.0
    assert check(MessageDriven(pipeline_limit=5), 5, flush(16), cost=cost).makespan > closed
    assert check(MessageDriven(pipeline_limit=7), 5, flush(16), cost=cost).makespan == closed


def test_forward_preference_is_never_faster_at_unit_cost() -> None:
    ratios = []
    for stages in STAGES:
        for microbatches in (1, 4, 8, 16):
            slow, quick = (
                check(MessageDriven(prefer=prefer), stages, flush(microbatches)).makespan
                for prefer in ("forward", "backward")
            )
            ratios.append(slow / quick)
    assert min(ratios) == 1.0
    assert 1.0 < max(ratios) <= 1.16


# -- broken schedules: test_schedule_mutations.py breaks every law -----------------------------------------------------

ONE = {1: "1F0 1B0 1F1 1B1 1U0"}  # a legal last stage for two microbatches and one update


@pytest.mark.parametrize(
    ("orders", "promise", "named", "marked"),
    [
        ({0: "0F0 0F0", **ONE}, 9, "0F0 runs twice", "[F0]"),
        ({0: "0F0 |", **ONE}, 9, "stage 0 accepts no op and has not ended", None),
        ({0: "0E0", **ONE}, 9, "0E0 runs in training", "[E0]"),
    ],
)
def test_broken_schedules_are_named(orders: Mapping[int, str], promise: int, named: str, marked: str | None) -> None:
    with pytest.raises(IllegalSchedule, match=named) as caught:
        check(Script(orders, promise), 2, flush(2))
    if marked is not None:
        assert marked in str(caught.value)
        assert str(caught.value).count("[") == (2 if "twice" in named else 1)  # an op that runs twice, both times


def test_a_drawing_marks_the_chunk_of_an_op() -> None:
    drawing = "rank 0 | F0    .     .     F0'   [W0']\nrank 1 | .     F0    F0'   .     ."
    with pytest.raises(IllegalSchedule, match=re.escape(drawing)):
        check(Script(("0F0 3F0 3W0", "1F0 2F0 2I0 1I0 2W0 1W0 1U0"), chunks=2, fold=True, split=True), 2, flush(1))


def test_channels_without_choice_need_one_order() -> None:
    timeline = check(Script(("0F0 0F1 0B0 0B1 0U0", "1F1 1F0 1B0 1B1 1U0"), split=True), 2, flush(2))
    with pytest.raises(IllegalSchedule, match="1F1 would receive the message of 0F0"):
        check_message_order(timeline)


def test_an_evaluation_that_trains_or_stops_is_named() -> None:
    def stops(place: Place, interval: FlushInterval) -> Program:
        yield (Op(place.stage, Kind.EVALUATE, interval.first),)

    for program, named in ((stops, "2 microbatches are not evaluated"), (OneFOneB().program, "0F0 runs in an evaluat")):
        with pytest.raises(IllegalSchedule, match=named):
            check_evaluation(program, places(OneFOneB(), 1), flush(3))


@pytest.mark.parametrize(
    ("key", "value", "legal"),
    [("pipeline_limit", 0, "pipeline_limit=None"), ("cap", -1, "cap=None"), ("prefer", "sideways", "backward")],
)
def test_message_driven_refuses_with_a_legal_value(key: str, value: object, legal: str) -> None:
    with refused(InvalidRequest, key, repr(value), legal=legal):
        MessageDriven(**{key: value})  # type: ignore[arg-type]
