"""Accounting of time in traces: hand-computed idle times, nothing lost.

Every breakdown, efficiency and simulated-against-measured number in a report comes from these three functions.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.gpipe import GPipe
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, needs
from suite.core.protocols import Schedule
from suite.core.trace import (
    BACKWARD,
    BUBBLE,
    CATEGORY,
    COMPRESS,
    FORWARD,
    RECOMPUTE,
    REDUCE,
    STEP,
    TIE,
    TRANSFER,
    WAIT,
    WEIGHT,
    Span,
    Trace,
    allowed_makespan,
    breakdown,
)
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import Timeline, check
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, simulate
from tests.support.modelled import FREE


def op(text: str) -> Op:
    return Op.parse(text)


def delayed(timeline: Timeline, delays: random.Random | None) -> Trace:
    """The timeline's orders and op times run again, with messages that take time; idle time recorded as `wait`."""
    trace, ends = Trace(), dict[Op, float]()
    free = [0.0] * timeline.stages
    queues = [[slot for slot in timeline.slots if slot.op.stage == stage] for stage in range(timeline.stages)]
    while any(queues):
        for rank, queue in enumerate(queues):
            need = needs(queue[0].op, timeline.stages) if queue else None
            if not queue or (need is not None and need not in ends):
                continue
            slot = queue.pop(0)
            late = delays.choice((0.0, 0.25, 2.0)) if delays else 0.0
            start = free[rank] if need is None else max(free[rank], ends[need] + late)
            if start > free[rank]:
                trace.add(rank, WAIT, free[rank], start, slot.op)
            free[rank] = ends[slot.op] = start + slot.end - slot.start
            trace.add(rank, CATEGORY[slot.op.kind], start, free[rank], slot.op)
    return trace


def two_stages() -> Trace:
    """One microbatch on two stages, passes of 1 and 2 s, messages of 0.5 s."""
    return Trace(
        [
            Span(0, FORWARD, 0.0, 1.0, op("0F0"), 64),
            Span(1, WAIT, 0.0, 1.5, op("1F0")),
            Span(1, FORWARD, 1.5, 2.5, op("1F0")),
            Span(1, BACKWARD, 2.5, 4.5, op("1B0"), 64),
            Span(0, WAIT, 1.0, 5.0, op("0B0")),
            Span(0, BACKWARD, 5.0, 7.0, op("0B0")),
        ]
    )


def test_transfer_bubble_and_wait_by_hand() -> None:
    """Each rank is busy 3 of 7 s. Rank 0 waits for 1B0, done at 4.5, until 5; rank 1 for 0F0, done at 1, until 1.5:
    0.5 s of transfer each. Filling and draining costs (2 - 1) * (1 + 2) = 3 s, and 7 - 3 - 0.5 - 3 = 0.5 s are left."""
    assert breakdown(two_stages(), Grid(inter=2)) == pytest.approx(
        {FORWARD: 1.0, BACKWARD: 2.0, TRANSFER: 0.5, BUBBLE: 3.0, WAIT: 0.5}
    )


def test_a_slow_neighbour_is_wait_and_no_transfer() -> None:
    """Stage 1 takes 4 s where stage 0 takes 1: rank 0 waits 4 s, of which (2 - 1) * (2.5 + 0) are the bubble."""
    trace = Trace(
        [
            Span(0, FORWARD, 0.0, 1.0, op("0F0")),
            Span(1, FORWARD, 1.0, 5.0, op("1F0")),
            Span(0, WAIT, 1.0, 5.0, op("0B0")),
        ]
    )
    parts = breakdown(trace, Grid(inter=2))
    # rank 0: bubble 2.5, wait 1.5; rank 1: idle for 1 s before its first op, all of it bubble
    assert parts == pytest.approx({FORWARD: 2.5, TRANSFER: 0.0, BUBBLE: (2.5 + 1.0) / 2, WAIT: 0.75})


def test_one_rank_has_no_bubble() -> None:
    trace = Trace([Span(0, FORWARD, 0.0, 1.0, op("0F0")), Span(0, BACKWARD, 1.5, 3.0, op("0B0"))])
    assert breakdown(trace, Grid()) == pytest.approx(
        {FORWARD: 1.0, BACKWARD: 1.5, TRANSFER: 0.0, BUBBLE: 0.0, WAIT: 0.5}
    )


def test_time_under_two_spans_is_counted_once() -> None:
    """A step that begins under its reduction: the first span has the time, the second what is left of its own."""
    trace = Trace([Span(0, REDUCE, 0.0, 4.0, op("0U0")), Span(0, STEP, 2.0, 5.0, op("0U0"))])
    parts = breakdown(trace, Grid())
    assert parts == {REDUCE: 4.0, STEP: 1.0, TRANSFER: 0.0, BUBBLE: 0.0, WAIT: 0.0}


def test_nothing_gives_nothing() -> None:
    assert breakdown([], Grid()) == {}
    assert Trace().makespan == 0.0
    assert allowed_makespan([], Grid()) == 0.0
    assert Trace().shifted() == []


schedules = st.sampled_from([GPipe(), OneFOneB(), MessageDriven(), MessageDriven(prefer="forward")])


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(1, 6), st.integers(1, 10), st.integers(0, 2**32), st.floats(-5.0, 5.0))
def test_categories_sum_to_the_makespan_and_the_bound_holds(
    schedule: GPipe | OneFOneB | MessageDriven, stages: int, microbatches: int, seed: int, origin: float
) -> None:
    clock = random.Random(seed)
    timeline = check(
        schedule, stages, FlushInterval(3, microbatches, None, 1), cost=lambda _: clock.choice((0.25, 0.5, 1.0, 3.0))
    )
    for delays in (None, random.Random(seed)):
        trace = delayed(timeline, delays)
        moved = Trace(span._replace(start=span.start + origin, end=span.end + origin) for span in trace)
        parts = breakdown(moved, Grid(inter=stages))
        assert sum(parts.values()) == pytest.approx(moved.makespan, abs=1e-9)
        assert min(parts.values()) >= -1e-9
        allowed = allowed_makespan(moved, Grid(inter=stages))
        assert allowed <= moved.makespan + 1e-9
        # without delays every order runs as the checker ran it, and the bound is met
        assert allowed == pytest.approx(timeline.makespan, abs=1e-9)
        if delays is None:
            assert parts[TRANSFER] == 0.0
            assert moved.makespan == pytest.approx(timeline.makespan, abs=1e-9)


def test_allowed_makespan_of_a_reduction() -> None:
    """Two replicas of one stage. Rank 0 arrives at 3 s, rank 1 at 5 s without its idle second. The reduction takes 2 s,
    as long as its fastest member took, and ends at 7 s. The longer step ends at 8 s."""
    trace = Trace(
        [
            Span(0, FORWARD, 0.0, 1.0, op("0F0")),
            Span(0, BACKWARD, 1.0, 3.0, op("0B0")),
            Span(0, REDUCE, 3.0, 8.5, op("0U0")),
            Span(0, STEP, 8.5, 9.0, op("0U0")),
            Span(1, FORWARD, 0.0, 2.0, op("0F0")),
            Span(1, BACKWARD, 3.0, 6.0, op("0B0")),
            Span(1, REDUCE, 6.0, 8.0, op("0U0")),
            Span(1, STEP, 8.0, 9.0, op("0U0")),
        ]
    )
    assert trace.makespan == 9.0
    assert allowed_makespan(trace, Grid(data=2)) == pytest.approx(8.0)


def test_replicas_do_not_wait_for_each_others_messages() -> None:
    """Two pipelines of two stages; the second is slower, and the first is not charged for it."""
    trace = Trace()
    for replica, seconds in ((0, 1.0), (1, 5.0)):
        for stage in (0, 1):
            start = stage * seconds
            trace.add(2 * replica + stage, FORWARD, start, start + seconds, Op(stage, op("0F0").kind, 0))
    assert allowed_makespan([span for span in trace if span.rank < 2], Grid(data=2, inter=2)) == pytest.approx(2.0)
    assert allowed_makespan(trace, Grid(data=2, inter=2)) == pytest.approx(10.0)


@pytest.mark.parametrize("span", [Span(3, FORWARD, 0.5, 1.25, op("3F12"), 4096), Span(0, "checkpoint", 0.0, 1.0)])
def test_a_span_reads_its_own_row(span: Span) -> None:
    assert Span.from_row(span.row()) == span
    assert span.seconds == span.end - span.start


def test_shifted_starts_at_zero() -> None:
    trace = Trace([Span(0, FORWARD, 7.0, 8.0), Span(1, FORWARD, 5.0, 9.0)])
    assert [(span.start, span.end) for span in trace.shifted()] == [(2.0, 3.0), (0.0, 4.0)]


def test_every_bucket_of_an_update_counts() -> None:
    """Two buckets of one second on two replicas take two seconds, not one."""
    update = Op(0, Kind.UPDATE, 0)
    trace = Trace()
    for rank in (0, 1):
        trace.add(rank, REDUCE, 0.0, 1.0, update)
        trace.add(rank, REDUCE, 1.0, 2.0, update)
    assert allowed_makespan(trace, Grid(data=2)) == 2.0


def test_an_op_without_length_keeps_its_dependency() -> None:
    """1F0 takes no time and ends when 0F0 does: what follows on stage 1 still waits for stage 0."""
    first, second = Op(0, Kind.FORWARD, 0), Op(1, Kind.FORWARD, 0)
    trace = Trace()
    trace.add(1, FORWARD, 2.0, 2.0, second)
    trace.add(1, BACKWARD, 2.0, 3.0, Op(1, Kind.BACKWARD, 0))
    trace.add(0, FORWARD, 0.0, 2.0, first)
    assert allowed_makespan(trace, Grid(inter=2)) == 3.0


def test_a_tie_is_a_meeting_of_the_ends() -> None:
    """The last stage comes first and waits 3 s in the reduction: that is idle time, and no time that ops need."""
    trace = Trace()
    trace.add(0, BACKWARD, 0.0, 4.0, Op(0, Kind.BACKWARD, 0))
    trace.add(0, TIE, 4.0, 4.5, Op(0, Kind.UPDATE, 0))
    trace.add(1, BACKWARD, 0.0, 1.0, Op(1, Kind.BACKWARD, 0))
    trace.add(1, TIE, 1.0, 4.5, Op(1, Kind.UPDATE, 0))
    assert allowed_makespan(trace, Grid(inter=2)) == 1.0 + 4.0 + 0.5  # 0B0 needs 1B0
    parts = breakdown(trace, Grid(inter=2))
    assert parts[TIE] == 0.5
    assert sum(parts.values()) == pytest.approx(4.5)


def test_parts_of_passes_and_steps_are_taken_from_the_whole() -> None:
    """Compressing 1 of a backward pass of 4, expanding 0.5 of a step of 2: the categories still sum to the makespan."""
    trace = Trace()
    trace.add(0, "forward", 0.0, 2.0, Op.parse("0F0"))
    trace.add(0, "compress", 5.0, 6.0)
    trace.add(0, "backward", 2.0, 6.0, Op.parse("0B0"))
    trace.add(0, "step", 6.0, 8.0)
    trace.add(0, "expand", 7.5, 8.0)
    parts = {name: seconds for name, seconds in breakdown(trace, Grid()).items() if seconds}
    assert parts == {"forward": 2.0, "backward": 3.0, "compress": 1.0, "step": 1.5, "expand": 0.5}
    assert allowed_makespan(trace, Grid()) == 8.0


def test_part_is_subtracted_from_the_pass_of_its_op() -> None:
    """A layer's sums take 0.5 of a forward pass and 1 of a backward pass, in which 1 more is repeated."""
    trace = Trace()
    trace.add(0, "forward", 0.0, 2.0, Op.parse("0F0"))
    trace.add(0, "tensor_reduce", 1.5, 2.0, Op.parse("0F0"))
    trace.add(0, "backward", 2.0, 6.0, Op.parse("0B0"))
    trace.add(0, "tensor_reduce", 4.0, 5.0, Op.parse("0B0"))
    trace.add(0, "recompute", 5.0, 6.0, Op.parse("0B0"))
    seconds_of = {name: seconds for name, seconds in breakdown(trace, Grid()).items() if seconds}
    assert seconds_of == {"forward": 1.5, "backward": 2.0, "tensor_reduce": 1.5, "recompute": 1.0}


# -- several stages per rank, split backward passes ------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", [Staircase(2), Staircase(split=True), Staircase(3, split=True), ZBV(), DualPipeV()]
)
@pytest.mark.parametrize("times", [(1.0, 2.0, 1.0), (0.5, 4.0, 1.0)])
def test_bubble_is_the_idle_time_of_the_checker(schedule: Schedule, times: tuple[float, float, float]) -> None:
    """On a slow network, each rank idles as long as the checker's; the rest of its idle time is transfer or wait."""
    forward, backward, weight = times
    seconds = {Kind.FORWARD: forward, Kind.BACKWARD: backward, Kind.INPUT: backward - weight, Kind.WEIGHT: weight}
    cost, interval = Fixed(forward, backward, 5, weight=weight), FlushInterval(0, 9, None, 0)
    timeline = check(schedule, 4, interval, cost=lambda op: seconds.get(op.kind, 0.0))
    network = NetworkModel(lambda first, second: Link(0.25, 50.0))
    simulation = simulate(schedule, Grid(inter=4), interval, cost, network, traced=True)
    parts = breakdown(simulation.trace, Grid(inter=4))
    assert parts[BUBBLE] == pytest.approx(sum(timeline.idle(rank) for rank in range(4)) / 4)
    assert sum(parts.values()) == pytest.approx(simulation.makespan)
    assert parts[TRANSFER] > 0
    free = simulate(schedule, Grid(inter=4), interval, cost, FREE, traced=True)
    parts = breakdown(free.trace, Grid(inter=4))
    assert parts[BUBBLE] == pytest.approx(sum(timeline.idle(rank) for rank in range(4)) / 4)
    assert (parts.get(TRANSFER), parts[WAIT]) == (0.0, pytest.approx(0.0, abs=1e-9))
    assert parts.get(WEIGHT, 0.0) == pytest.approx(
        sum(slot.end - slot.start for slot in timeline.slots if slot.op.kind is Kind.WEIGHT) / 4
    )


@pytest.mark.parametrize("schedule", [Staircase(2), Staircase(split=True), ZBV(), DualPipeV()])
def test_allowed_makespan_of_placed_schedules_is_that_of_the_checker(schedule: Schedule) -> None:
    """Op by op, over a slow network, in two pipelines."""
    interval, grid = FlushInterval(0, 9, None, 0), Grid(data=2, inter=4)

    def seconds(op: Op) -> float:
        return 0.0 if op.kind is Kind.UPDATE else (7 * op.index + 3 * op.stage) % 5 + 0.5

    class Cost(Fixed):
        def compute(self, op: Op) -> float:
            return seconds(op)

    network = NetworkModel(lambda first, second: Link(2.0, 50.0))
    simulation = simulate(schedule, grid, interval, Cost(0.0, 0.0, 5), network, symmetric=False, traced=True)
    expected = check(schedule, 4, interval, cost=seconds).makespan
    assert allowed_makespan(simulation.trace, grid) == pytest.approx(expected)
    assert simulation.makespan > expected


def test_parts_of_a_weight_gradient_belong_to_it() -> None:
    trace = Trace([Span(0, BACKWARD, 0, 2, Op.parse("0I0")), Span(0, RECOMPUTE, 1, 2, Op.parse("0I0"))])
    trace += [Span(0, WEIGHT, 2, 5, Op.parse("0W0")), Span(0, COMPRESS, 4, 5, Op.parse("0W0"))]
    parts = breakdown(trace, Grid())
    assert {name: parts[name] for name in (BACKWARD, RECOMPUTE, WEIGHT, COMPRESS)} == {
        **{BACKWARD: 1, RECOMPUTE: 1, WEIGHT: 2, COMPRESS: 1},
    }
