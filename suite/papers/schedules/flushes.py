"""Answers about schedules from the quantities of checked flushes: at points, on numbers of ranks, and as growth."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from suite.claims.answer import Cases, Number, Papers, Question
from suite.core.errors import InvalidRequest
from suite.papers.schedules.orders import PassTimes, timeline
from suite.papers.schedules.quantities import Flush, lifespans, quantity_of, stage_bubble

OFFSETS = {(1, 1): "v_min", (2, 1): "v_half"}  # offsets between devices of the two chunks (arXiv 2405.15362, Section 3)


def at_points(
    question: Question, papers: Papers, *, quantity: str, schedule: str, ranks: str = "p"
) -> tuple[Cases, str]:
    """A quantity at each point."""
    values = [quantity_of(quantity)(Flush.at(point, schedule, ranks)) for point in question.points]
    return [values], f"{quantity} of {schedule}, by the checker"


def on_ranks(
    question: Question,
    papers: Papers,
    *,
    quantity: str,
    schedule: str,
    ranks: Sequence[int],
    rounds: int,
    over: str = "",
) -> tuple[Cases, str]:
    """A quantity, or its ratio to that of the schedule `over`, at equal pass times and `rounds` microbatches per rank.

    One case per number of ranks.
    """
    measure = quantity_of(quantity)
    cases = [
        [measure(Flush.of(schedule, p, rounds * p)) / (measure(Flush.of(over, p, rounds * p)) if over else 1)]
        for p in ranks
    ]
    return cases, f"{quantity} of {schedule}{f' over {over}' if over else ''}, equal pass times, by the checker"


def growth(question: Question, papers: Papers, *, quantity: str, schedule: str = "") -> tuple[Cases, str]:
    """Growth of a quantity from p to q ranks at equal pass times, at each point.

    Without `schedule`, a point has the offsets d0 and d1 of a schedule in OFFSETS.
    """
    values = []
    for point in question.integer_points():
        name = schedule or OFFSETS[point["d0"], point["d1"]]
        least, most = (quantity_of(quantity)(Flush.of(name, point[ranks], point["m"])) for ranks in ("p", "q"))
        values.append(most - least)
    return [values], f"{quantity} on q ranks less that on p, {schedule or 'by offsets'}, by the checker"


def relative_growth(
    question: Question,
    papers: Papers,
    *,
    quantity: str,
    schedule: str,
    over: str,
    ranks: Sequence[Sequence[int]],
    rounds: int,
) -> tuple[Cases, str]:
    """The ratio towards which a quantity tends: growth from p to q ranks, over that of another schedule."""

    def growth_of(name: str, p: int, q: int) -> Number:
        least, most = (quantity_of(quantity)(Flush.of(name, count, rounds * count)) for count in (p, q))
        return most - least

    cases = [[growth_of(schedule, *pair) / growth_of(over, *pair)] for pair in ranks]
    return cases, f"growth with the ranks of {quantity} of {schedule} over {over}"


def bubbles_over_microbatches(
    question: Question, papers: Papers, *, schedule: str, ranks: Sequence[int], counts: Sequence[int]
) -> tuple[Cases, str]:
    """Bubbles over a growing number of microbatches at the printed pass times, one case per number of ranks."""
    setting: Any = question.setting
    cases = [[stage_bubble(Flush.of(schedule, p, m, PassTimes.of(setting))) for m in counts] for p in ranks]
    return cases, f"stage time of {schedule} less the passes of one rank"


def above_lower_bound(
    question: Question, papers: Papers, *, schedules: Sequence[str], ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """The printed lower bound at the activations that a run holds, and the stage time of this run."""
    runs = [(timeline(name, p, rounds * p), p) for name in schedules for p in ranks]
    cases = [[6 * rounds * p + 6 * p - 3 * max(run.peak) - 1, run.stage_time()] for run, p in runs]
    return cases, f"printed bound and stage time, {len(cases)} runs by the checker"


def below_lifespan_bound(
    question: Question, papers: Papers, *, schedules: Sequence[str], ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Peak activations of each rank, and the bound by the lifespans on its stages."""
    cases = []
    for flush in (Flush.of(name, p, rounds * p) for name in schedules for p in ranks):
        spans, interval = lifespans(flush.run), flush.chunks * flush.times.total
        for place, peak in zip(flush.run.places, flush.run.peak, strict=True):
            cases.append([peak, sum(ceil(max(spans[stage]) / interval) for stage in place.held_stages)])
    return cases, f"peak and bound by lifespans of {len(cases)} ranks, by the checker"


def least_microbatches(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Fewest microbatches that a schedule accepts on p ranks, at each point."""

    def legal(p: int, m: int) -> bool:
        try:
            timeline(schedule, p, m)
        except InvalidRequest:
            return False
        return True

    values = [next(m for m in range(1, 8 * p) if legal(p, m)) for p in (int(x["p"]) for x in question.points)]
    return [values], f"fewest microbatches that {schedule} accepts"


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
        row = []
        for name in schedules:
            share = {"zb_v": 2, "interleaved_1f1b": chunks}.get(name, 1)
            times = dict(zip(("tf", "tb", "tw"), (time / share for time in setting[2:]), strict=True))
            point = {"p": setting[0], "m": setting[1], "v": chunks, **times}
            row.append(quantity_of("bubble over stage time")(Flush.at(point, name)))
        cases.append(row)
    return cases, f"bubble over stage time by the checker, {len(cases)} settings"
