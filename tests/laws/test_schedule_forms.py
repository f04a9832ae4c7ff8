"""Promised memory and closed forms of every schedule, by enumeration.

`p` ranks, `m` microbatches, `v` chunks per rank; `tf, tb, tw` are the times of F, I and W of one chunk. Messages take
no time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, message_of
from suite.core.protocols import Schedule
from suite.schedule import ZBV, DualPipeV, MessageDrivenSplit, MessageDrivenV, Staircase
from suite.schedule.check import Timeline, check, check_one_version, op_costs
from suite.schedule.controllable_memory import ControllableMemory, bound
from tests.support.drawn import cells, generator
from tests.support.refusals import refused
from tests.support.schedules import SCHEDULES, flush, serves

RANKS, MICROBATCHES = range(1, 9), range(1, 33)
Times = tuple[float, float, float]
UNIT: Times = (1.0, 1.0, 1.0)
TIMES: list[Times] = [UNIT, (2.0, 2.0, 1.0), (1.0, 2.0, 1.0), (3.0, 2.0, 4.0), (0.25, 2.0, 1.5)]


def group(p: int, m: int) -> int:
    """Longest round of microbatches of an interleaved schedule."""
    return -(-m // max(1, m // p))


# activations held on rank r: F without its B or W
HELD: Mapping[str, Callable[[int, int, int], int]] = {
    "one_f_one_b": lambda p, m, r: min(p - r, m),
    "eager_1f1b": lambda p, m, r: min(2 * (p - r) - 1, m),
    "zb_h1": lambda p, m, r: min(p, m),
    "zb_h2": lambda p, m, r: min(2 * p - 1, m),
    "interleaved_1f1b_2": lambda p, m, r: min(group(p, m) + 2 * (p - 1 - r) + 1, 2 * m),
    "interleaved_1f1b_3": lambda p, m, r: min(2 * group(p, m) + 2 * (p - 1 - r) + 1, 3 * m),
    "interleaved_zero_bubble_2": lambda p, m, r: min(group(p, m) + p, 2 * m),
    "interleaved_zero_bubble_3": lambda p, m, r: min(2 * group(p, m) + p, 3 * m),
    "looped_bfs": lambda p, m, r: 2 * m,
    "zbv": lambda p, m, r: min(2 * p, 2 * m),
    "v_half": lambda p, m, r: min(2 * ((p + 2) // 2), 2 * m),
    "v_min": lambda p, m, r: min(2 * ((p + 4) // 3), 2 * m),
    "dual_pipe_v": lambda p, m, r: 2 * p + 1,
    "axonn_zb": lambda p, m, r: min(2 * p - 1, m),
    "axonn_zbv": lambda p, m, r: min(2 * p, 2 * m),
}


def run(schedule: Schedule, p: int, m: int, times: Times = UNIT) -> Timeline:
    forward, backward, weight = times
    return check(schedule, p, flush(m), cost=op_costs(forward, backward + weight, weight))


def excess(schedule: Schedule, p: int, m: int, times: Times = UNIT) -> float:
    """Makespan above the time that a rank computes."""
    timeline = run(schedule, p, m, times)
    return timeline.makespan - m * timeline.stages // p * sum(times)


def sizes(schedule: Schedule, n: int) -> Iterator[tuple[int, int]]:
    """The smallest and n drawn numbers of ranks and of microbatches that a schedule serves."""
    every = [(p, m) for p in RANKS for m in MICROBATCHES if serves(schedule, p, m)]
    yield from (*every[:3], *generator(str(schedule), n).sample(every, n))


@pytest.mark.parametrize("name", HELD)
def test_held_activations_equal_promise_and_closed_form(name: str) -> None:
    """ZBV leaves out ops below 2 p - 1 microbatches, and then holds up to p - 1 activations less than the form says."""
    for p, m in sizes(SCHEDULES[name], 12):
        timeline = run(SCHEDULES[name], p, m)
        promised = [SCHEDULES[name].in_flight(place, flush(m)) for place in timeline.places]
        assert promised == list(timeline.peak), (p, m)
        slack = [HELD[name](p, m, r) - peak for r, peak in enumerate(promised)]
        assert min(slack) == 0, (p, m)
        assert max(slack) <= (max(0, p - 1) if name == "zbv" and m < 2 * p - 1 else 0), (p, m, slack)


# -- bubbles -----------------------------------------------------------------------------------------------------------

Form = Callable[[int, int, float, float, float], float]  # p, m, tf, tb, tw


def zb_h1(p: int, m: int, tf: float, tb: float, tw: float) -> float:
    return (p - 1) * max(tf, tb, tf + tb - tw)


# makespan above the time that a rank computes, for the m and times that the last function accepts
BUBBLES: Mapping[str, tuple[Form, Callable[[int, int, Times], bool]]] = {
    "one_f_one_b": (lambda p, m, *t: (p - 1) * sum(t), lambda p, m, t: True),
    "eager_1f1b": (lambda p, m, *t: (p - 1) * sum(t), lambda p, m, t: True),
    "interleaved_1f1b_2": (lambda p, m, *t: (p - 1 + max(0, p - m)) * sum(t), lambda p, m, t: True),
    "interleaved_1f1b_3": (lambda p, m, *t: (p - 1 + 2 * max(0, p - m)) * sum(t), lambda p, m, t: True),
    "looped_bfs": (lambda p, m, *t: (p - 1 + max(0, p - m)) * sum(t), lambda p, m, t: True),
    # arXiv 2401.10241, Section 2.1, gives the last term, which is the largest where tw is at most tf and tb
    "zb_h1": (
        lambda p, m, tf, tb, tw: zb_h1(p, m, tf, tb, tw) + max(0, p - m) * min(tb, tw),
        lambda p, m, t: m >= p or t[2] <= min(t[:2]),
    ),
    "interleaved_zero_bubble_2": (zb_h1, lambda p, m, t: m >= p),
    "interleaved_zero_bubble_3": (zb_h1, lambda p, m, t: m >= p),
    # arXiv 2401.10241, Section 2.2
    "zb_h2": (
        lambda p, m, tf, tb, tw: (p - 1) * max(tf, tb - tf, tf + tb - 2 * tw),
        lambda p, m, t: m >= 2 * p - 1,
    ),
    "zbv": (lambda p, m, *t: max(p - 1, 2 * (2 * p - 1 - m)), lambda p, m, t: t == UNIT),
    # overlapped pairs are one op after the other
    "dual_pipe_v": (lambda p, m, tf, tb, tw: (p - 1) * max(tf, tf + tb - tw), lambda p, m, t: t[0] == t[1]),
}


@pytest.mark.parametrize("name", BUBBLES)
def test_bubble_is_the_closed_form(name: str) -> None:
    form, holds = BUBBLES[name]
    for times in TIMES:
        for p, m in sizes(SCHEDULES[name], 5):
            if holds(p, m, times):
                assert excess(SCHEDULES[name], p, m, times) == pytest.approx(form(p, m, *times), abs=1e-9), (
                    p,
                    m,
                    times,
                )


def test_stage_time_of_zb_h2_and_zbv() -> None:
    """(p - 1) max(0, tb - tf, tf + tb - 2 tw) for tw at most tb (arXiv 2401.10241, Section 2.2); none of ZBV."""
    for forward, backward, weight in (times for times in TIMES if times[2] <= times[1]):
        for p, m in sizes(SCHEDULES["zb_h2"], 10):
            idle = (p - 1) * max(0.0, backward - forward, forward + backward - 2 * weight)
            if m >= 2 * p - 1:
                timeline = run(SCHEDULES["zb_h2"], p, m, (forward, backward, weight))
                assert timeline.stage_time() == pytest.approx(m * (forward + backward + weight) + idle), (p, m)
                assert run(ZBV(), p, m).stage_time() == 6 * m


def test_v_half_and_v_min_reach_the_published_stage_time() -> None:
    """6 p - 1 - 3 k at unit cost (arXiv 2405.15362, Table 1); V-Min takes 2 more where p mod 3 is 2.

    Stage time is at least 6 m + 6 p - 3 k - 1 with k activations held, if m fills the memory.
    """
    for memory in ("half", "min"):
        for p in RANKS:
            k, schedule = bound(memory, p), ControllableMemory(memory)
            if p >= 3:
                timeline, extra = run(schedule, p, 4 * p), 2 if memory == "min" and p % 3 == 2 else 0
                assert timeline.stage_time() - 24 * p == 6 * p - 1 - 3 * k + extra, (memory, p)
                assert max(timeline.peak) == k
            for m in generator(memory, p).sample(range(p + 1, 21), 2):
                assert run(schedule, p, m).stage_time() >= max(6 * m, 6 * m + 6 * p - 3 * k - 1)


@pytest.mark.parametrize(
    ("schedule", "times", "expected"),
    [
        (MessageDrivenSplit(cap=8, late=0), UNIT, 9),
        (MessageDrivenSplit(cap=8, late=1), UNIT, 14),
        (MessageDrivenSplit(), UNIT, 7),
        (MessageDrivenSplit(), (2.0, 2.0, 1.0), 14),
    ],
)
def test_message_driven_order_needs_room_to_match_zb_h2(schedule: Schedule, times: Times, expected: float) -> None:
    assert excess(schedule, 8, 24, times) == expected


def test_message_driven_v_needs_room_to_match_zbv() -> None:
    """At unit cost, two activations above the memory of ZBV suffice for its makespan."""
    for more, expected in ((0, 2), (1, 1), (2, 0)):
        found = {
            excess(MessageDrivenV(2 * p + more), p, m) - excess(ZBV(), p, m)
            for p in (2, 3, 5, 8)
            for m in (2 * p, 4 * p, 4 * p + 1)
        }
        assert max(found) == expected


# -- streams, split and whole backward passes --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "times"), cells(HELD, TIMES[:2] + TIMES[3:4], n=8))
def test_batch_of_a_stream_without_a_drain_takes_the_stage_time(name: str, times: Times) -> None:
    """Each further batch of a stream adds the stage time, and no update comes between the passes of a microbatch."""
    schedule, (forward, backward, weight) = SCHEDULES[name], times
    cost = op_costs(forward, backward + weight, weight)
    for p in (1, 2, 3, 8):
        for m in (each for each in (2, 2 * p, 2 * p + 3) if serves(schedule, p, each)):
            longer, stream = (check(schedule, p, FlushInterval(0, m * k, m, 0), cost=cost) for k in (5, 4))
            one = run(schedule, p, m, times)
            assert longer.makespan - stream.makespan == pytest.approx(one.stage_time()), (p, m)
            check_one_version(schedule, stream, m)
            assert not any(map(any, stream.gaps))
            assert stream.peak == one.peak


def test_zero_bubble_schedules_have_no_bubble_in_a_stream_without_a_drain() -> None:
    """ZB-H2 and ZBV at equal times: every rank works from its first op to its last (arXiv 2401.10241, Section 4)."""
    for schedule in (Staircase(split=True, lead=2), ZBV()):
        for p in RANKS:
            stream = check(schedule, p, FlushInterval(0, 6 * p, 2 * p, 0), cost=op_costs(1, 2, 1))
            assert stream.stage_time() == 6 * p * len(stream.places[0].held_stages) * 3
            assert stream.makespan < 3 * run(schedule, p, 2 * p).makespan or p == 1


@pytest.mark.parametrize("name", HELD)
def test_backward_passes_of_every_schedule_are_split_or_whole(name: str) -> None:
    """The other value of `schedule.split` is legal for every number of microbatches, also where op times vary."""
    published: Any = SCHEDULES[name]
    other, draw = replace(published, split=not published.split), random.Random(name)
    for p, m in sizes(published, 8):
        for cost in (op_costs(1, 2, 1), lambda op: draw.uniform(0.5, 1.5)):
            timeline = check(other, p, flush(m), cost=cost)
            kinds = {slot.op.kind for slot in timeline.slots}
            assert (Kind.WEIGHT in kinds) is (Kind.INPUT in kinds) is (Kind.BACKWARD not in kinds) is other.split
            promised = [other.in_flight(place, flush(m)) for place in timeline.places]
            assert all(peak <= most for peak, most in zip(timeline.peak, promised, strict=True))
    whole, split = (check(replace(published, split=each), 4, flush(9)) for each in (False, True))
    if name in ("zbv", "v_half", "v_min", "dual_pipe_v"):  # a whole pass runs where the input gradient ran
        for rank in range(4):
            passes = [message_of(op) for op in split.order(rank) if op.kind is not Kind.WEIGHT]
            assert list(whole.order(rank)) == passes
    assert whole.owed == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "whole", "split"),
    [
        ("zb_h1", 1.219, 1.073),
        ("interleaved_1f1b_2", 1.109, 1.036),
        ("looped_bfs", 1.109, 1.073),
        ("zbv", 1.146, 1.036),
        ("v_half", 1.521, 1.089),
        ("v_min", 2.167, 1.130),
        ("dual_pipe_v", 1.141, 1.036),
        ("axonn_zb", 1.219, 1.073),
        ("axonn_zbv", 1.349, 1.042),
    ],
)
def test_makespans_that_the_documents_print(name: str, whole: float, split: float) -> None:
    """Makespan over 3 m v, 8 ranks and 32 microbatches (docs/schedules.md)."""
    published: Any = SCHEDULES[name]
    found = [run(replace(published, split=each), 8, 32).makespan / (96 * published.chunks) for each in (False, True)]
    assert [round(each, 3) for each in found] == [whole, split]


def test_dual_pipe_v_refuses_every_number_below_two_per_rank() -> None:
    for p in RANKS:
        for m in {1, 2 * p - 1}:
            with refused(InvalidRequest, subject=f"{m} microbatches per update", legal=f"{2 * p} microbatches"):
                run(DualPipeV(), p, m)
        run(DualPipeV(), p, 2 * p)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", HELD)
def test_held_activations_of_long_flushes_and_deep_pipelines(name: str) -> None:
    for p in (*RANKS, 12, 16):
        for m in (m for m in (*range(1, 65), 96) if serves(SCHEDULES[name], p, m)):
            peak, held = run(SCHEDULES[name], p, m).peak, [HELD[name](p, m, r) for r in range(p)]
            exact = name != "zbv" or m >= 2 * p - 1
            assert list(peak) == held if exact else all(a <= b for a, b in zip(peak, held, strict=True)), (p, m)
