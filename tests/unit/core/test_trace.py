"""Accounting of time in traces: hand-computed idle times, nothing lost.

Every breakdown, efficiency and simulated-against-measured number in a report comes from these functions.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.gpipe import GPipe
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Op, needs
from suite.core.trace import (
    BUBBLE,
    CATEGORY,
    FORWARD,
    TRANSFER,
    WAIT,
    Span,
    Trace,
    allowed_makespan,
    breakdown,
)
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import Timeline, check


def trace(text: str) -> Trace:
    """Spans as `rank category start end op`, between semicolons."""
    rows = [span.split() for span in text.split(";")]
    return Trace(
        Span(int(rank), category, float(start), float(end), *map(Op.parse, op))
        for rank, category, start, end, *op in rows
    )


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


ALONE, TWO = Grid(), Grid(inter=2)


def test_breakdowns_by_hand() -> None:
    for text, grid, expected in (
        # Each rank is busy 3 of 7 s. Rank 0 waits for 1B0, done at 4.5, until 5; rank 1 for 0F0, done at 1, until 1.5:
        # 0.5 s of transfer each. Filling and draining costs (2 - 1) * (1 + 2) = 3 s; 7 - 3 - 0.5 - 3 = 0.5 s are left.
        (
            "0 forward 0 1 0F0; 1 wait 0 1.5 1F0; 1 forward 1.5 2.5 1F0; 1 backward 2.5 4.5 1B0; 0 wait 1 5 0B0;"
            "0 backward 5 7 0B0",
            TWO,
            {"forward": 1, "backward": 2, "transfer": 0.5, "bubble": 3, "wait": 0.5},
        ),
        ("0 forward 0 1 0F0; 0 backward 1.5 3 0B0", ALONE, {"forward": 1, "backward": 1.5, "wait": 0.5}),
        # A step that begins under its reduction: the first span has the time, the second what is left of its own.
        ("0 reduce 0 4 0U0; 0 step 2 5 0U0", ALONE, {"reduce": 4, "step": 1}),
        # Compressing 1 of a backward pass of 4, expanding 0.5 of a step of 2.
        (
            "0 forward 0 2 0F0; 0 compress 5 6; 0 backward 2 6 0B0; 0 step 6 8; 0 expand 7.5 8",
            ALONE,
            {"forward": 2, "backward": 3, "compress": 1, "step": 1.5, "expand": 0.5},
        ),
        # A layer's sums take 0.5 of a forward pass and 1 of a backward pass, in which 1 more is repeated.
        (
            "0 forward 0 2 0F0; 0 tensor_reduce 1.5 2 0F0; 0 backward 2 6 0B0; 0 tensor_reduce 4 5 0B0;"
            "0 recompute 5 6 0B0",
            ALONE,
            {"forward": 1.5, "backward": 2, "tensor_reduce": 1.5, "recompute": 1},
        ),
    ):
        parts = breakdown(trace(text), grid)
        assert {name: seconds for name, seconds in parts.items() if seconds} == pytest.approx(expected), text
        assert {TRANSFER, BUBBLE, WAIT} <= parts.keys()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([GPipe(), OneFOneB(), MessageDriven(), MessageDriven(prefer="forward")]),
    st.integers(1, 6),
    st.integers(1, 10),
    st.integers(0, 2**32),
    st.floats(-5.0, 5.0),
)
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


def test_allowed_makespans_by_hand() -> None:
    for text, grid, expected in (
        # Two replicas of one stage. Rank 0 arrives at 3 s, rank 1 at 5 s without its idle second. The reduction takes
        # 2 s, as long as its fastest member took, and ends at 7 s. The longer step ends at 8 s.
        (
            "0 forward 0 1 0F0; 0 backward 1 3 0B0; 0 reduce 3 8.5 0U0; 0 step 8.5 9 0U0;"
            "1 forward 0 2 0F0; 1 backward 3 6 0B0; 1 reduce 6 8 0U0; 1 step 8 9 0U0",
            Grid(data=2),
            8,
        ),
        # Two pipelines of two stages; the second is slower, and the first is not charged for it.
        ("0 forward 0 1 0F0; 1 forward 1 2 1F0", Grid(data=2, inter=2), 2),
        (
            "0 forward 0 1 0F0; 1 forward 1 2 1F0; 2 forward 0 5 0F0; 3 forward 5 10 1F0",
            Grid(data=2, inter=2),
            10,
        ),
        # 1F0 takes no time and ends when 0F0 does: what follows on stage 1 still waits for stage 0.
        ("1 forward 2 2 1F0; 1 backward 2 3 1B0; 0 forward 0 2 0F0", TWO, 3),
        # A tie is a meeting of the ends. The last stage comes first and waits 3 s in the reduction; 0B0 needs 1B0.
        ("0 backward 0 4 0B0; 0 tie 4 4.5 0U0; 1 backward 0 1 1B0; 1 tie 1 4.5 1U0", TWO, 1 + 4 + 0.5),
        ("0 forward 0 2 0F0; 0 compress 5 6; 0 backward 2 6 0B0; 0 step 6 8; 0 expand 7.5 8", ALONE, 8),
    ):
        assert allowed_makespan(trace(text), grid) == pytest.approx(expected), text
    tied = breakdown(trace("0 backward 0 4 0B0; 0 tie 4 4.5 0U0; 1 backward 0 1 1B0; 1 tie 1 4.5 1U0"), TWO)
    assert tied["tie"] == 0.5
    assert sum(tied.values()) == pytest.approx(4.5)


def test_spans_read_their_own_rows_and_shifted_ones_start_at_zero() -> None:
    for span in (Span(3, FORWARD, 0.5, 1.25, Op.parse("3F12"), 4096), Span(0, "checkpoint", 0.0, 1.0)):
        assert Span.from_row(span.row()) == span
        assert span.seconds == span.end - span.start
    moved = trace("0 forward 7 8; 1 forward 5 9")
    assert [(span.start, span.end) for span in moved.shifted()] == [(2.0, 3.0), (0.0, 4.0)]
    assert moved.makespan == 4.0
