"""Promised memory and closed forms of every schedule, by enumeration.

`p` ranks, `m` microbatches, `v` chunks per rank; `tf, tb, tw` are the times of F, I and W of one chunk. Messages take
no time. tests/unit/schedule/test_placed_schedules.py has the bubbles of unsplit schedules, ZB-H1, ZB-H2, ZBV, V-Half
and V-Min.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, message_of
from suite.core.protocols import Schedule
from suite.schedule import (
    ZBV,
    ControllableMemory,
    DualPipeV,
    LoopedBFS,
    MessageDrivenSplit,
    MessageDrivenV,
    Staircase,
)
from suite.schedule.check import Timeline, check, check_one_version, op_costs
from suite.schedule.controllable_memory import bound

RANKS, MICROBATCHES = range(1, 9), range(1, 21)
TIMES = [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (1.0, 2.0, 1.0), (3.0, 2.0, 4.0), (0.25, 2.0, 1.5)]


def group(p: int, m: int) -> int:
    """Longest round of microbatches of an interleaved schedule."""
    return -(-m // max(1, m // p))


# activations held on rank r: F without its B or W
HELD: Mapping[str, tuple[Schedule, Callable[[int, int, int], int]]] = {
    "one_f_one_b": (Staircase(), lambda p, m, r: min(p - r, m)),
    "eager_one_f_one_b": (Staircase(lead=2), lambda p, m, r: min(2 * (p - r) - 1, m)),
    "zb_h1": (Staircase(split=True), lambda p, m, r: min(p, m)),
    "zb_h2": (Staircase(split=True, lead=2), lambda p, m, r: min(2 * p - 1, m)),
    "interleaved_2": (Staircase(2), lambda p, m, r: min(group(p, m) + 2 * (p - 1 - r) + 1, 2 * m)),
    "interleaved_3": (Staircase(3), lambda p, m, r: min(2 * group(p, m) + 2 * (p - 1 - r) + 1, 3 * m)),
    "interleaved_zero_bubble_2": (Staircase(2, split=True), lambda p, m, r: min(group(p, m) + p, 2 * m)),
    "interleaved_zero_bubble_3": (Staircase(3, split=True), lambda p, m, r: min(2 * group(p, m) + p, 3 * m)),
    "looped_bfs": (LoopedBFS(2), lambda p, m, r: 2 * m),
    "zbv": (ZBV(), lambda p, m, r: min(2 * p, 2 * m)),
    "v_half": (ControllableMemory("half"), lambda p, m, r: min(2 * ((p + 2) // 2), 2 * m)),
    "v_min": (ControllableMemory("min"), lambda p, m, r: min(2 * ((p + 4) // 3), 2 * m)),
    "dual_pipe_v": (DualPipeV(), lambda p, m, r: 2 * p + 1),
    "axonn_zb": (MessageDrivenSplit(), lambda p, m, r: min(2 * p - 1, m)),
    "axonn_zb_v": (MessageDrivenV(), lambda p, m, r: min(2 * p, 2 * m)),
}


def run(schedule: Schedule, p: int, m: int, times: tuple[float, float, float] = TIMES[0]) -> Timeline:
    forward, backward, weight = times
    return check(schedule, p, FlushInterval(0, m, None, 0), cost=op_costs(forward, backward + weight, weight))


def excess(schedule: Schedule, p: int, m: int, times: tuple[float, float, float]) -> float:
    """Makespan above the time that a rank computes."""
    timeline = run(schedule, p, m, times)
    return timeline.makespan - m * timeline.stages // p * sum(times)


@pytest.mark.parametrize("name", HELD)
def test_held_activations_equal_promise_and_closed_form(name: str) -> None:
    """ZBV leaves out ops below 2 p - 1 microbatches, and then holds up to p - 1 activations less than it promises."""
    schedule, held = HELD[name]
    for p in RANKS:
        for m in MICROBATCHES:
            if name == "dual_pipe_v" and m < 2 * p:
                continue
            timeline = run(schedule, p, m)
            interval = FlushInterval(0, m, None, 0)
            promised = [schedule.in_flight(place, interval) for place in timeline.places]
            assert promised == [held(p, m, r) for r in range(p)], (p, m)
            slack = [most - peak for most, peak in zip(promised, timeline.peak, strict=True)]
            assert min(slack) == 0, (p, m)
            assert max(slack) <= (max(0, p - 1) if name == "zbv" and m < 2 * p - 1 else 0), (p, m, slack)


@pytest.mark.parametrize("times", TIMES)
def test_bubble_of_eager_one_f_one_b(times: tuple[float, float, float]) -> None:
    for p in RANKS:
        for m in MICROBATCHES:
            assert excess(Staircase(lead=2), p, m, times) == pytest.approx((p - 1) * sum(times), abs=1e-9)


@pytest.mark.parametrize("times", TIMES)
def test_bubble_of_zb_h1_below_p_microbatches(times: tuple[float, float, float]) -> None:
    forward, backward, weight = times
    if weight > min(forward, backward):
        return
    for p in RANKS:
        for m in range(1, p):
            expected = (p - 1) * (forward + backward - weight) + (p - m) * min(backward, weight)
            assert excess(Staircase(split=True), p, m, times) == pytest.approx(expected, abs=1e-9), (p, m)


@pytest.mark.parametrize("times", TIMES)
def test_stage_time_of_zb_h2(times: tuple[float, float, float]) -> None:
    """(p - 1) max(0, tb - tf, tf + tb - 2 tw) for tw at most tb.

    arXiv 2401.10241, Section 2.2, gives the last term, which is the largest positive one where tw is at most tf.
    """
    forward, backward, weight = times
    if weight > backward:
        return
    for p in RANKS:
        for m in range(2 * p - 1, 21):
            expected = m * sum(times) + (p - 1) * max(0.0, backward - forward, forward + backward - 2 * weight)
            assert run(Staircase(split=True, lead=2), p, m, times).stage_time() == pytest.approx(expected), (p, m)


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("times", TIMES[:2] + TIMES[3:4])
def test_batch_of_a_stream_without_a_drain_takes_the_stage_time(name: str, times: tuple[float, float, float]) -> None:
    """Each further batch of a stream adds the stage time, and no update comes between the passes of a microbatch."""
    schedule, _ = HELD[name]
    forward, backward, weight = times
    cost = op_costs(forward, backward + weight, weight)
    for p in (1, 2, 3, 5, 8):
        for m in (2, 2 * p, 2 * p + 3):
            if name == "dual_pipe_v" and m < 2 * p:
                continue
            longer, stream = (check(schedule, p, FlushInterval(0, m * k, m, 0), cost=cost) for k in (5, 4))
            assert longer.makespan - stream.makespan == pytest.approx(run(schedule, p, m, times).stage_time()), (p, m)
            check_one_version(schedule, stream, m)
            assert not any(gap for gaps in stream.gaps for gap in gaps)
            assert stream.peak == run(schedule, p, m, times).peak


def test_zero_bubble_schedules_have_no_bubble_in_a_stream_without_a_drain() -> None:
    """ZB-H2 and ZBV at equal times: every rank works from its first op to its last (arXiv 2401.10241, Section 4)."""
    for schedule in (Staircase(split=True, lead=2), ZBV()):
        for p in RANKS:
            m = 2 * p
            stream = check(schedule, p, FlushInterval(0, 3 * m, m, 0), cost=op_costs(1, 2, 1))
            chunks = len(stream.places[0].held_stages)
            assert stream.stage_time() == 3 * m * chunks * 3
            assert stream.makespan < 3 * run(schedule, p, m).makespan or p == 1


@pytest.mark.parametrize("times", [times for times in TIMES if times[0] == times[1]])
def test_bubble_of_dual_pipe_v_without_overlap(times: tuple[float, float, float]) -> None:
    """(p - 1) max(tf, tf + tb - tw) for tf = tb, with overlapped pairs one op after the other."""
    forward, backward, weight = times
    for p in RANKS:
        for m in range(2 * p, 21):
            expected = (p - 1) * max(forward, forward + backward - weight)
            assert excess(DualPipeV(), p, m, times) == pytest.approx(expected, abs=1e-9), (p, m)


@pytest.mark.parametrize("schedule", [ZBV(), *map(ControllableMemory, ("half", "min"))], ids=str)
def test_no_v_is_faster_than_its_memory_allows(schedule: Schedule) -> None:
    """Stage time is at least 6 m + 6 p - 3 k - 1 with k activations held (arXiv 2405.15362), if m fills the memory."""
    for p in RANKS:
        for m in range(p + 1, 21):
            k = bound(schedule.memory, p) if isinstance(schedule, ControllableMemory) else 2 * p
            assert run(schedule, p, m).stage_time() >= max(6 * m, 6 * m + 6 * p - 3 * k - 1)


@pytest.mark.parametrize("name", HELD)
def test_backward_passes_of_every_schedule_are_split_or_whole(name: str) -> None:
    """The other value of `schedule.split` is legal for every number of microbatches, also where op times vary."""
    published: Any = HELD[name][0]
    other = replace(published, split=not published.split)
    draw = random.Random(name)
    for p in RANKS:
        for m in range(2 * p if name == "dual_pipe_v" else 1, 13 + p):
            interval = FlushInterval(0, m, None, 0)
            for cost in (op_costs(1, 2, 1), lambda op: draw.uniform(0.5, 1.5)):
                timeline = check(other, p, interval, cost=cost)
                kinds = {slot.op.kind for slot in timeline.slots}
                assert (Kind.WEIGHT in kinds) is (Kind.INPUT in kinds) is other.split
                assert (Kind.BACKWARD in kinds) is not other.split
                assert all(
                    peak <= other.in_flight(place, interval)
                    for peak, place in zip(timeline.peak, timeline.places, strict=True)
                )


@pytest.mark.parametrize(
    ("name", "whole", "split"),
    [
        ("zb_h1", 1.219, 1.073),
        ("interleaved_2", 1.109, 1.036),
        ("looped_bfs", 1.109, 1.073),
        ("zbv", 1.146, 1.036),
        ("v_half", 1.521, 1.089),
        ("v_min", 2.167, 1.130),
        ("dual_pipe_v", 1.141, 1.036),
        ("axonn_zb", 1.219, 1.073),
        ("axonn_zb_v", 1.349, 1.042),
    ],
)
def test_makespans_that_the_documents_print(name: str, whole: float, split: float) -> None:
    """Makespan over 3 m v, 8 ranks and 32 microbatches (docs/schedules.md)."""
    published: Any = HELD[name][0]
    found = [run(replace(published, split=each), 8, 32).makespan / (96 * published.chunks) for each in (False, True)]
    assert [round(each, 3) for each in found] == [whole, split]


@pytest.mark.parametrize("name", ["zbv", "v_half", "v_min", "dual_pipe_v", "axonn_zb_v"])
def test_whole_backward_pass_runs_where_the_input_gradient_ran(name: str) -> None:
    published: Any = HELD[name][0]
    whole, split = (check(replace(published, split=each), 4, FlushInterval(0, 9, None, 0)) for each in (False, True))
    for rank in range(4) if name != "axonn_zb_v" else ():
        passes = [message_of(op) for op in split.order(rank) if op.kind is not Kind.WEIGHT]
        assert list(whole.order(rank)) == passes
    assert whole.owed == (0, 0, 0, 0)
    assert all(a <= b for a, b in zip(whole.peak, split.peak, strict=True))


def test_dual_pipe_v_refuses_every_number_below_two_per_rank() -> None:
    for p in RANKS:
        for m in range(1, 2 * p):
            with pytest.raises(InvalidRequest) as caught:
                run(DualPipeV(), p, m)
            assert f"{m} microbatches per update on {p} pipeline ranks with DualPipeV" in str(caught.value)
            assert caught.value.legal == f"{2 * p} microbatches"
        run(DualPipeV(), p, 2 * p)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HELD)
def test_held_activations_of_long_flushes_and_deep_pipelines(name: str) -> None:
    schedule, held = HELD[name]
    for p in (*RANKS, 12, 16):
        for m in (*range(1, 65), 96):
            if name == "dual_pipe_v" and m < 2 * p:
                continue
            peak = run(schedule, p, m).peak
            exact = name != "zbv" or m >= 2 * p - 1
            assert all((n == held(p, m, r)) if exact else (n <= held(p, m, r)) for r, n in enumerate(peak)), (p, m)
