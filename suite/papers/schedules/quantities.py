"""Quantities of checked flushes: durations, bubbles, activations held, warm-up passes and messages.

No quantity contains a closed form: each is read or counted from the timeline of the suite's own order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from suite.claims.answer import Number
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, Kind, feeds
from suite.papers.schedules.orders import EQUAL, PassTimes, timeline
from suite.schedule.check import Timeline

Point = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class Flush:
    """One checked flush of a schedule.

    Attributes:
        schedule: Name of the schedule.
        run: Its timeline.
        microbatches: Microbatches of the flush.
        times: Pass times of a chunk.
        point: Further symbols of the point at which a formula is tried, such as the rank r.
    """

    schedule: str
    run: Timeline
    microbatches: int
    times: PassTimes
    point: Point = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: str, ranks: int, microbatches: int, times: PassTimes = EQUAL) -> Flush:
        return cls(schedule, timeline(schedule, ranks, microbatches, times), microbatches, times)

    @classmethod
    def at(cls, point: Point, schedule: str, ranks: str = "p") -> Flush:
        """Flush at a point: p ranks (or the count of symbol `ranks`), m microbatches, v chunks, and the pass times."""
        variant, times = int(point.get("v", point.get("k", 0))), PassTimes.of(point)
        run = timeline(schedule, int(point[ranks]), int(point["m"]), times, variant)
        return cls(schedule, run, int(point["m"]), times, point)

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        return self.run.stages // len(self.run.places)

    @property
    def passes(self) -> float:
        """Time of all passes of one rank."""
        return self.microbatches * self.chunks * self.times.total


def bubble(flush: Flush) -> float:
    return flush.run.makespan - flush.passes


def stage_bubble(flush: Flush) -> float:
    return flush.run.stage_time() - flush.passes


def held(flush: Flush) -> float:
    """Most activations on a rank, in whole microbatches of the rank's stages."""
    return max(flush.run.peak) / flush.chunks


def held_everywhere(flush: Flush) -> float:
    """Activations on every rank. Raises InvalidRequest if the ranks hold different numbers."""
    if len(set(flush.run.peak)) > 1:
        what = f"{flush.schedule} holds {flush.run.peak}"
        raise InvalidRequest(what, rule="equally many activations on every rank")
    return held(flush)


def held_bytes(flush: Flush) -> Number:
    """Most activation bytes on a rank: a microbatch holds MB until its input gradient, and MW from there on."""
    in_flight, owed, run = flush.point["MB"], flush.point["MW"], flush.run
    return max(a * in_flight + b * owed for rank in range(len(run.places)) for a, b in run.fronts(rank))


def lifespans(run: Timeline) -> dict[int, list[float]]:
    """Times from the start of a forward pass to the end of its backward pass by stage, in the order of their ends."""
    started: dict[tuple[int, int], float] = {}
    spans: dict[int, list[float]] = {}
    for slot in run.slots:
        key = slot.op.stage, slot.op.index
        if slot.op.kind is Kind.FORWARD:
            started[key] = slot.start
        elif slot.op.kind in COMPLETES_MICROBATCH:
            spans.setdefault(slot.op.stage, []).append(slot.end - started[key])
    return spans


def lifespan(flush: Flush) -> float:
    """Longest lifespan of an activation after the warm-up of as many microbatches as ranks."""
    ranks = len(flush.run.places)
    return max(max(of_stage[ranks:]) for of_stage in lifespans(flush.run).values())


def warm_up(flush: Flush) -> int:
    """Forward passes of rank r before its first backward pass, without the one that begins the steady phase."""
    order = flush.run.order(int(flush.point["r"]))
    return sum(1 for _ in takewhile(lambda op: op.kind not in SENDS_GRADIENT, order)) - 1


def messages(flush: Flush) -> int:
    """Messages between ranks."""
    home: Callable[[int], int] = flush.run.places[0].rank_of
    receivers = ((slot.op, feeds(slot.op, flush.run.stages)) for slot in flush.run.slots)
    return sum(fed is not None and home(op.stage) != home(fed.stage) for op, fed in receivers)


def idle_before_first_gradient(flush: Flush) -> float:
    """Idle time of rank 0 between its first forward passes and its first input gradient."""
    slots = flush.run.slots_of(0)
    first = next(number for number, slot in enumerate(slots) if slot.op.kind in SENDS_GRADIENT)
    return slots[first].start - sum(slot.end - slot.start for slot in slots[:first])


def forwards_until_first_gradient(flush: Flush) -> float:
    """Forward passes that rank 0 could end before its first gradient arrives."""
    arrival = next(slot.end for slot in flush.run.slots if slot.op.kind is Kind.INPUT and slot.op.stage == 1)
    return arrival // flush.times.forward


QUANTITIES: Mapping[str, Callable[[Flush], Number]] = {
    "makespan": lambda flush: flush.run.makespan,
    "bubble of the makespan": bubble,
    "bubble of the stage time": stage_bubble,
    "bubble over makespan": lambda flush: bubble(flush) / flush.run.makespan,
    "bubble over stage time": lambda flush: stage_bubble(flush) / flush.run.stage_time(),
    "bubble of the stage time over the passes": lambda flush: stage_bubble(flush) / flush.passes,
    "activations held, in chunks": lambda flush: max(flush.run.peak),
    "activations held": held,
    "activations held on every rank": held_everywhere,
    "bytes of activations": held_bytes,
    "longest lifespan of an activation": lifespan,
    "warm-up passes": warm_up,
    "messages between ranks": messages,
    "stages on a rank": lambda flush: len(flush.run.places[0].held_stages),
    "idle time before the first gradient": idle_before_first_gradient,
    "forward passes until the first gradient": forwards_until_first_gradient,
}


def quantity_of(name: str) -> Callable[[Flush], Number]:
    """The quantity of this name, as rows of claims.yaml write it. Raises UnknownName for another name."""
    if name not in QUANTITIES:
        raise UnknownName("quantity of a schedule", name, QUANTITIES)
    return QUANTITIES[name]
