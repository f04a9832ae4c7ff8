"""Answers about bubbles, bubble rates and batch times, read from checked timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite.claims.answer import Cases, Number, Papers, Question
from suite.core.errors import InvalidRequest
from suite.core.op import SENDS_GRADIENT, Kind
from suite.papers.schedules.orders import PassTimes, chunks_of, duration, timeline
from suite.schedule.check import Timeline

Point = Mapping[str, Number]


def run_of(point: Point, schedule: str, ranks: str = "p") -> Timeline:
    """Timeline at a point: p ranks (or the count of symbol `ranks`), m microbatches, v chunks, and the pass times."""
    variant = int(point.get("v", point.get("k", 0)))
    return timeline(schedule, int(point[ranks]), int(point["m"]), PassTimes.of(point), variant)


def idle_of(run: Timeline, microbatches: int, times: PassTimes, measure: str) -> tuple[float, float]:
    """Bubble of a run, its duration beyond the passes of one rank; and the duration."""
    total = duration(run, measure)
    return total - microbatches * chunks_of(run) * times.total, total


def idle(run: Timeline, microbatches: int, times: PassTimes, measure: str) -> float:
    """Bubble of a run."""
    return idle_of(run, microbatches, times, measure)[0]


def bubble(question: Question, papers: Papers, *, schedule: str, measure: str, ranks: str = "p") -> tuple[Cases, str]:
    """Bubble at each point."""
    values = [
        idle(run_of(point, schedule, ranks), int(point["m"]), PassTimes.of(point), measure) for point in question.points
    ]
    return [values], f"{measure} of {schedule} by the checker, less the passes of one rank"


def rate(question: Question, papers: Papers, *, schedule: str, measure: str) -> tuple[Cases, str]:
    """Bubble over the whole duration, at each point."""
    values = []
    for point in question.points:
        bubble_time, total = idle_of(run_of(point, schedule), int(point["m"]), PassTimes.of(point), measure)
        values.append(bubble_time / total)
    return [values], f"bubble over {measure} of {schedule} by the checker"


def batch_time(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Makespan at each point."""
    values = [run_of(point, schedule).makespan for point in question.points]
    return [values], f"makespan of {schedule} by the checker"


def stage_bubbles(
    question: Question, papers: Papers, *, schedule: str, ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Bubble of the stage time at equal pass times, one case per number of ranks, for `rounds` microbatches each."""
    values = [idle(timeline(schedule, p, rounds * p), rounds * p, PassTimes(), "stage time") for p in ranks]
    return [[value] for value in values], f"stage time of {schedule} by the checker, at equal pass times"


def bubble_ratio(
    question: Question, papers: Papers, *, schedule: str, over: str, ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Bubble of a schedule over that of another, at equal pass times; one case per number of ranks."""

    def of(name: str, p: int) -> float:
        return idle(timeline(name, p, rounds * p), rounds * p, PassTimes(), "makespan")

    return [[of(schedule, p) / of(over, p)] for p in ranks], f"bubble of {schedule} over {over}, equal pass times"


def bubble_growth(question: Question, papers: Papers, *, schedule: str, rate: bool = False) -> tuple[Cases, str]:
    """Growth of the bubble from p to q ranks at equal pass times; as a rate, over the passes of one rank."""
    values = []
    for point in question.integer_points():
        m = point["m"]
        least, most = (idle(timeline(schedule, point[x], m), m, PassTimes(), "stage time") for x in ("p", "q"))
        values.append((most - least) / (6 * m if rate else 1))
    return [values], f"bubble of {schedule} on q ranks less that on p, by the checker"


def bubbles_over_microbatches(
    question: Question, papers: Papers, *, schedule: str, ranks: Sequence[int], counts: Sequence[int]
) -> tuple[Cases, str]:
    """Bubbles over a growing number of microbatches at the printed pass times, one case per number of ranks."""
    setting: Any = question.setting
    passes = PassTimes.of(setting)
    cases = [[idle(timeline(schedule, p, m, passes), m, passes, "stage time") for m in counts] for p in ranks]
    return cases, f"stage time of {schedule} less the passes of one rank"


def above_lower_bound(
    question: Question, papers: Papers, *, schedules: Sequence[str], ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """The printed lower bound at the activations that a run holds, and the stage time of this run."""
    cases = []
    for name in schedules:
        for p in ranks:
            run = timeline(name, p, rounds * p)
            cases.append([6 * rounds * p + 6 * p - 3 * max(run.peak) - 1, run.stage_time()])
    return cases, f"printed bound and stage time, {len(cases)} runs by the checker"


def before_first_backward(question: Question, papers: Papers) -> tuple[Cases, str]:
    """Idle time of rank 0 between its first k forward passes and its first input gradient, at each point."""
    values = []
    for point in question.points:
        slots = run_of(point, "message_driven_split").slots_of(0)
        first = next(number for number, slot in enumerate(slots) if slot.op.kind in SENDS_GRADIENT)
        values.append(slots[first].start - sum(slot.end - slot.start for slot in slots[:first]))
    return [values], "idle time of rank 0 before its first input gradient, by the checker"


def forwards_until_first_gradient(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Forward passes that rank 0 could end before its first gradient arrives, at each point."""
    values = []
    for point in question.points:
        slots = run_of(point, schedule).slots
        arrival = next(slot.end for slot in slots if slot.op.kind is Kind.INPUT and slot.op.stage == 1)
        values.append(arrival // PassTimes.of(point).forward)
    return [values], f"forward passes until the first gradient arrives on rank 0 of {schedule}, by the checker"


def rates_at_times(
    question: Question, papers: Papers, *, schedules: Sequence[str], settings: Sequence[Sequence[Number]], chunks: int
) -> tuple[Cases, str]:
    """Bubble rates of several schedules at the same pass times, one case per setting (ranks, microbatches, times).

    Raises:
        InvalidRequest: A setting has another number of values than five.
    """
    cases = []
    for setting in settings:
        if len(setting) != 5:
            raise InvalidRequest(f"setting {list(setting)}", rule="ranks, microbatches, three pass times")
        ranks, microbatches = int(setting[0]), int(setting[1])
        row = []
        for name in schedules:
            share = {"zb_v": 2, "interleaved_1f1b": chunks}.get(name, 1)
            times = PassTimes(*(time / share for time in setting[2:]))
            run = timeline(name, ranks, microbatches, times, chunks)
            bubble_time, total = idle_of(run, microbatches, times, "stage time")
            row.append(bubble_time / total)
        cases.append(row)
    return cases, f"bubble over stage time by the checker, {len(cases)} settings"
