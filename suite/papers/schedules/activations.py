"""Answers about activations held, warm-up passes, messages and legal microbatches, counted on checked timelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from math import ceil

from suite.claims.answer import Cases, Number, Papers, Question
from suite.core.errors import InvalidRequest
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, Kind, feeds
from suite.papers.schedules.bubbles import run_of
from suite.papers.schedules.orders import PassTimes, chunks_of, timeline
from suite.schedule.check import Timeline

OFFSETS = {(1, 1): "v_min", (2, 1): "v_half"}  # offsets between devices of the two chunks (arXiv 2405.15362, Section 3)


def held_bytes(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Largest activation bytes of any rank at each point.

    A microbatch holds MB from its forward pass to its input gradient, and MW from there to its weight gradient.
    """
    values = []
    for point in question.points:
        run = run_of(point, schedule)
        values.append(max(rank_bytes(run, rank, point["MB"], point["MW"]) for rank in range(len(run.places))))
    return [values], f"in flight times M_B plus owed times M_W of {schedule}, largest over ranks"


def rank_bytes(run: Timeline, rank: int, in_flight: Number, owed: Number) -> Number:
    """Largest activation bytes of one rank."""
    return max(a * in_flight + b * owed for a, b in run.fronts(rank))


def held(question: Question, papers: Papers, *, schedule: str, unit: str, ranks: str = "p") -> tuple[Cases, str]:
    """Most activations held on a rank at each point, in chunks or in whole microbatches of the rank's stages."""
    values = []
    for point in question.points:
        run = run_of(point, schedule, ranks)
        values.append(max(run.peak) / (chunks_of(run) if unit == "microbatch" else 1))
    return [values], f"most activations held on a rank by {schedule}"


def held_everywhere(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Most activations held, in chunks, at each point if every rank holds equally many.

    Raises:
        InvalidRequest: The ranks hold different numbers.
    """
    values = []
    for point in question.points:
        run = run_of(point, schedule)
        if len(set(run.peak)) > 1:
            raise InvalidRequest(f"{schedule} holds {run.peak}", rule="equally many activations on every rank")
        values.append(run.peak[0] / chunks_of(run))
    return [values], f"activations held on every rank by {schedule}"


def held_ratio(
    question: Question, papers: Papers, *, schedule: str, over: str, ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Activations held by a schedule over those of another on the same ranks, one case per number of ranks."""

    def of(name: str, p: int) -> float:
        run = timeline(name, p, rounds * p)
        return max(run.peak) / chunks_of(run)

    return [[of(schedule, p) / of(over, p)] for p in ranks], f"activations held by {schedule} over {over}"


def held_growth(
    question: Question, papers: Papers, *, schedule: str, over: str, ranks: Sequence[Sequence[int]], rounds: int
) -> tuple[Cases, str]:
    """The ratio towards which activations tend: growth from p to q ranks, over that of another schedule."""

    def growth_of(name: str, p: int, q: int) -> float:
        runs = [timeline(name, count, rounds * count) for count in (p, q)]
        least, most = (max(run.peak) / chunks_of(run) for run in runs)
        return most - least

    cases = [[growth_of(schedule, *pair) / growth_of(over, *pair)] for pair in ranks]
    return cases, f"growth with the ranks of the activations of {schedule} over {over}"


def growth(question: Question, papers: Papers, *, schedule: str = "") -> tuple[Cases, str]:
    """Growth from p to q ranks of the microbatches that a schedule holds, at each point.

    Without `schedule`, a point has the offsets d0 and d1 of a schedule in OFFSETS.
    """
    values = []
    for point in question.integer_points():
        name = schedule or OFFSETS[point["d0"], point["d1"]]
        runs = [timeline(name, point[ranks], point["m"]) for ranks in ("p", "q")]
        least, most = (max(run.peak) / chunks_of(run) for run in runs)
        values.append(most - least)
    return [values], f"microbatches held on q ranks less those on p, {schedule or 'by offsets'}"


def lifespan(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Longest time from the start of a forward pass to the end of its backward pass, after the warm-up."""
    values = []
    for point in question.integer_points():
        spans = lifespans(run_of(point, schedule)).values()
        values.append(max(max(of_stage[point["p"] :]) for of_stage in spans))
    return [values], f"longest lifespan of an activation of {schedule} after the warm-up, by the checker"


def lifespans(run: Timeline) -> dict[int, list[float]]:
    """Lifespans of the activations of each stage, in the order of their ends."""
    started: dict[tuple[int, int], float] = {}
    spans: dict[int, list[float]] = {}
    for slot in run.slots:
        key = slot.op.stage, slot.op.index
        if slot.op.kind is Kind.FORWARD:
            started[key] = slot.start
        elif slot.op.kind in COMPLETES_MICROBATCH:
            spans.setdefault(slot.op.stage, []).append(slot.end - started[key])
    return spans


def below_lifespan_bound(
    question: Question, papers: Papers, *, schedules: Sequence[str], ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Peak activations of each rank, and the bound by the lifespans on its stages."""
    cases = []
    for name in schedules:
        for p in ranks:
            run = timeline(name, p, rounds * p)
            spans, interval = lifespans(run), chunks_of(run) * PassTimes().total
            for place, peak in zip(run.places, run.peak, strict=True):
                cases.append([peak, sum(ceil(max(spans[stage]) / interval) for stage in place.held_stages)])
    return cases, f"peak and bound by lifespans of {len(cases)} ranks, by the checker"


def warm_up(question: Question, papers: Papers, *, schedule: str) -> tuple[Cases, str]:
    """Forward passes of rank r before its first backward pass, without the one that begins the steady phase."""
    values = []
    for point in question.integer_points():
        order = run_of(point, schedule).order(point["r"])
        values.append(sum(1 for _ in takewhile(lambda op: op.kind not in SENDS_GRADIENT, order)) - 1)
    return [values], f"forward passes of {schedule} before the first backward pass of the rank"


def messages(
    question: Question, papers: Papers, *, schedule: str, over: str, ranks: Sequence[int], rounds: int
) -> tuple[Cases, str]:
    """Messages between ranks in a batch over those of another schedule, one case per number of ranks."""

    def sent(name: str, p: int) -> int:
        run = timeline(name, p, rounds * p)
        home: Callable[[int], int] = run.places[0].rank_of
        receivers = ((slot.op, feeds(slot.op, run.stages)) for slot in run.slots)
        return sum(fed is not None and home(op.stage) != home(fed.stage) for op, fed in receivers)

    return [[sent(schedule, p) / sent(over, p)] for p in ranks], f"messages between ranks of {schedule} over {over}"


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


def chunks_held(
    question: Question, papers: Papers, *, schedule: str, over: str, ranks: Sequence[int]
) -> tuple[Cases, str]:
    """Stages on a rank over those of another schedule with as many stages in all, one case per number of ranks."""
    cases = []
    for p in ranks:
        run = timeline(schedule, p, 4 * p)
        other = timeline(over, run.stages, 4 * p)
        cases.append([len(run.places[0].held_stages) / len(other.places[0].held_stages)])
    return cases, f"stages on a rank of {schedule} over {over}, for as many stages in all"
