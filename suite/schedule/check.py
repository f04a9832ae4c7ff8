"""Schedule checker: run a schedule in virtual time, without tensors or processes, and prove that it is legal.

An op starts when its rank is free and its message has arrived; messages take no time. With the default ticks (forward
1, backward 2, update 0) the result is the schedule as the papers draw it. With the op times of a measured run it is the
makespan that these times allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isqrt

from suite.core.errors import IllegalSchedule, InvalidRequest, Unsupported
from suite.core.op import (
    COMPLETES_MICROBATCH,
    SENDS_GRADIENT,
    FlushInterval,
    Kind,
    Op,
    Place,
    Program,
    message_of,
    needs,
)
from suite.core.protocols import Schedule
from suite.schedule.draw import Slot, grid
from suite.schedule.placement import is_plain, places

# limits on the ops that a check visits, about a minute and about ten seconds, and on the ops that it stores
MOST, SHORT, OPS = 100_000_000, 20_000_000, 4_000_000


def op_costs(forward: float, backward: float, weight: float, update: float = 0.0) -> Callable[[Op], float]:
    """Durations of ops by kind. `backward` is a whole backward pass, whose part `weight` is the weight gradient."""
    costs = {
        Kind.FORWARD: forward,
        Kind.BACKWARD: backward,
        Kind.INPUT: backward - weight,
        Kind.WEIGHT: weight,
        Kind.UPDATE: update,
        Kind.EVALUATE: forward,
    }
    return lambda op: float(costs[op.kind])


ticks = op_costs(1.0, 2.0, 1.0)  # a backward pass takes twice its forward pass (AxoNN Figure 1, SAMO Figure 3)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Legal run of a schedule. Sequences are indexed by pipeline rank.

    Attributes:
        places: Place of each pipeline rank.
        slots: Every op with its start and end, in order of start.
        peak: Most forward passes at once whose backward pass or weight gradient had not run.
        gaps: Updates between the forward and the backward pass of each microbatch: the version difference that
            stashing or prediction has to bridge.
    """

    places: tuple[Place, ...]
    slots: tuple[Slot, ...]
    peak: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return self.places[0].stages

    @property
    def makespan(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0)

    def slots_of(self, rank: int) -> tuple[Slot, ...]:
        place = self.places[rank]
        return tuple(slot for slot in self.slots if place.rank_of(slot.op.stage) == rank)

    def order(self, rank: int) -> tuple[Op, ...]:
        """Ops of one rank as they ran: the static order of a transport that needs one."""
        return tuple(slot.op for slot in self.slots_of(rank))

    def stage_orders(self) -> list[list[Op]]:
        """Ops of each stage as its weight policy sees them: an input gradient reads weights, a weight gradient none."""
        orders: list[list[Op]] = [[] for _ in range(self.stages)]
        for place in self.places:
            for op in self.order(place.rank):
                if op.kind is Kind.UPDATE:
                    for stage in place.held_stages:
                        orders[stage].append(op._replace(stage=stage))
                elif op.kind is not Kind.WEIGHT:
                    orders[op.stage].append(message_of(op))
        return orders

    @property
    def owed(self) -> tuple[int, ...]:
        """Most input gradients at once, per rank, whose weight gradient had not run; 0 without a split."""
        return tuple(max(owed for _, owed in self.fronts(place.rank)) for place in self.places)

    def idle(self, rank: int) -> float:
        return self.makespan - sum(slot.end - slot.start for slot in self.slots_of(rank))

    def fronts(self, rank: int) -> frozenset[tuple[int, int]]:
        """Pairs (forward passes without a backward pass, weight gradients owed) of one rank that no other pair exceeds.

        The peaks of the two numbers do not coincide, so memory is the maximum over the pairs.
        """
        return memory_fronts(self.order(rank))

    def stage_time(self) -> float:
        """Longest time from the first start to the last end on one rank (arXiv 2401.10241, Section 4)."""
        spans = [self.slots_of(place.rank) for place in self.places]
        passes = [[slot for slot in span if slot.end > slot.start] for span in spans]
        return max(max(slot.end for slot in span) - min(slot.start for slot in span) for span in passes)


def memory_fronts(order: Iterable[Op]) -> frozenset[tuple[int, int]]:
    """Pairs (forward passes without a backward pass, weight gradients owed) that no other pair of an order exceeds."""
    started = owed = 0
    pairs = set()
    for op in order:
        started += (op.kind is Kind.FORWARD) - (op.kind in SENDS_GRADIENT)
        owed += (op.kind is Kind.INPUT) - (op.kind is Kind.WEIGHT)
        pairs.add((started, owed))
    return frozenset(pair for pair in pairs if not any(a >= pair[0] and b >= pair[1] for a, b in pairs - {pair}))


class _RankProgram:
    """Program of one rank and the laws that its ops must keep."""

    def __init__(self, program: Program, place: Place, interval: FlushInterval, bound: int | None) -> None:
        """Start a rank; `bound` limits the forward passes in flight and is None in an evaluation."""
        self.program, self.place, self.interval, self.bound = program, place, interval, bound
        self.stages = frozenset(place.held_stages)
        self.ran: set[Op] = set()
        self.accepted: tuple[Op, ...] = ()
        self.busy = self.ended = False
        self.open: dict[tuple[int, int], int] = {}  # updates before each forward pass without B or W
        self.owed: set[tuple[int, int]] = set()  # input gradients without their weight gradients
        self.gaps: dict[tuple[int, int], int] = {}
        self.updates = self.peak = 0

    def fault(self, op: Op) -> str | None:
        """Law that `op` would break now; None if it is legal."""
        if op.stage not in self.stages:
            stages = " and ".join(map(str, self.place.held_stages))
            return f"{op} belongs to stage {op.stage}, not {stages}"
        if (op.kind is Kind.EVALUATE) is not (self.bound is None):
            return f"{op} runs in {'an evaluation' if self.bound is None else 'training'}, where its kind is illegal"
        if op in self.ran:
            return f"{op} runs twice"
        if op.kind is Kind.UPDATE:
            return self._update_fault(op)
        if not self.interval.first <= op.index < self.interval.end:
            return f"{op} is outside the work, microbatches {self.interval.first} to {self.interval.end - 1}"
        key = op.stage, op.index
        if op.kind in SENDS_GRADIENT:
            if key in self.owed or key in self.gaps:
                return f"{op} follows another backward pass of its microbatch"
            return f"{op} comes before its forward" if key not in self.open else None
        if op.kind is Kind.WEIGHT:
            return f"{op} comes before its input gradient" if key not in self.owed else None
        if op.kind is Kind.FORWARD and self.bound is not None and len(self.open) >= self.bound:
            return f"{op} would be forward number {len(self.open) + 1} in flight, the schedule promised {self.bound}"
        return None

    def _update_fault(self, op: Op) -> str | None:
        interval = self.interval
        expected = interval.update + self.updates
        if op.stage != self.place.stage or op.index != expected:
            return f"{op} is out of turn: the next update is {expected}"
        start = interval.first + self.updates * interval.microbatches_per_update
        for index in range(start, min(start + interval.microbatches_per_update, interval.end)):
            if any((stage, index) not in self.gaps for stage in self.stages):
                owes = any((stage, index) in self.owed for stage in self.stages)
                missing = "weight gradient" if owes else "backward"
                return f"{op} comes before the {missing} of microbatch {index}"
        return None

    def run(self, op: Op) -> None:
        self.ran.add(op)
        key = op.stage, op.index
        if op.kind is Kind.UPDATE:
            self.updates += 1
        elif op.kind is Kind.FORWARD:
            self.open[key] = self.updates
            self.peak = max(self.peak, len(self.open))
        elif op.kind is Kind.INPUT:
            self.owed.add(key)
        elif op.kind in COMPLETES_MICROBATCH:
            self.owed.discard(key)
            self.gaps[key] = self.updates - self.open.pop(key)

    def missing(self) -> str | None:
        """Ops that the finished program left out."""
        if self.bound is None:
            undone = self.interval.microbatches * len(self.stages) - len(self.ran)
            return f"{undone} microbatches are not evaluated" if undone else None
        for index in range(self.interval.first, self.interval.end):
            for stage in self.place.held_stages:
                if (stage, index) in self.owed:
                    return f"the weight gradient of microbatch {index} never runs"
                if (stage, index) not in self.gaps:
                    return f"the backward of microbatch {index} never runs"
        if self.updates != self.interval.updates:
            return f"{self.updates} updates of {self.interval.updates} run"
        return None


def check_size(microbatches: int, stages: int, most: int = MOST) -> None:
    """Raise InvalidRequest for a check that would visit more than `most` ops or store more than OPS."""
    for formula, each, bound in (("stages^2", stages**2, most), ("stages", stages, OPS)):
        if 2 * microbatches * each > bound:
            rule = f"2 * microbatches * {formula} is {2 * microbatches * each}, at most {bound}"
            fits = min(most // (2 * stages**2), OPS // (2 * stages))
            legal = f"{fits} microbatches" if fits else f"{isqrt(most // 2)} stages"
            raise InvalidRequest(f"{microbatches} microbatches on {stages} stages", rule=rule, legal=legal)


def accepts_size(schedule: Schedule, ranks: int, interval: FlushInterval) -> bool:
    """Whether a schedule accepts a number of microbatches. It refuses one by InvalidRequest, before its first op."""
    for place in places(schedule, ranks):
        try:
            next(iter(schedule.program(place, interval)), None)
        except InvalidRequest:
            return False
    return True


def check(
    schedule: Schedule, ranks: int, interval: FlushInterval, *, cost: Callable[[Op], float] = ticks, replica: int = 0
) -> Timeline:
    """Run `schedule` on `ranks` pipeline ranks and return its timeline.

    Raises:
        IllegalSchedule: for the first broken law, with the drawing up to that op. Each op runs once, a backward pass
            after its forward pass, a weight gradient after its input gradient. Updates are in order and complete.
            There is no deadlock, and the promised number of forward passes in flight is kept.
        InvalidRequest: for a check that would take longer than about a minute.
    """
    where = places(schedule, ranks, replica, replica + 1)
    check_size(interval.microbatches, where[0].stages)
    parts = [_RankProgram(schedule.program(p, interval), p, interval, schedule.in_flight(p, interval)) for p in where]
    return _drive(parts, cost)


def check_one_version(schedule: Schedule, timeline: Timeline, update_interval: int | None) -> None:
    """Check that a stream of a schedule with chunks or a split backward pass needs one weight version per stage.

    Batches may then follow each other without a drain, and training stays synchronous: the drain-free mode of ZB-H2 and
    ZBV (arXiv 2401.10241, Section 4). A schedule with one stage per rank and whole backward passes is always accepted,
    because its weight policy bridges the updates.

    Args:
        timeline: A checked stream of the schedule.
        update_interval: Microbatches per update of the stream; None for a flush.

    Raises:
        Unsupported: an update comes between the forward and the backward pass of a microbatch.
    """
    if update_interval is None or is_plain(schedule):
        return
    for place, gaps in zip(timeline.places, timeline.gaps, strict=True):
        if any(gaps):
            raise Unsupported(
                "update_interval",
                update_interval,
                rule="with several stages per rank or a split backward pass, no update comes between the passes of a "
                f"microbatch; on rank {place.rank}, {max(gaps)} do",
                legal="update_interval=null, or a schedule that runs all microbatches of an update before the next",
            )


def check_evaluation(
    program: Callable[[Place, FlushInterval], Program], where: Sequence[Place], interval: FlushInterval
) -> Timeline:
    """Check a program of evaluation ops in the same way."""
    return _drive([_RankProgram(program(p, interval), p, interval, None) for p in where], ticks)


def check_message_order(timeline: Timeline) -> None:
    """Check that neighbouring stages run their passes of one kind in the same order.

    A transport without a choice receives in the order of the sender, so it needs this law in addition.

    Raises:
        IllegalSchedule: names the first op that would receive another message than its own.
    """
    orders: dict[tuple[int, Kind], list[int]] = {}
    for slot in timeline.slots:
        sent = message_of(slot.op)
        if sent.kind in (Kind.FORWARD, Kind.BACKWARD) and slot.op.kind is not Kind.WEIGHT:
            orders.setdefault((sent.stage, sent.kind), []).append(sent.index)
    for (stage, kind), indices in sorted(orders.items()):
        peer = stage + 1 if kind is Kind.FORWARD else stage - 1
        for sender, receiver in zip(indices, orders.get((peer, kind), indices), strict=True):
            if sender != receiver:
                op, message = Op(peer, kind, receiver), Op(stage, kind, sender)
                raise IllegalSchedule(f"{op} would receive the message of {message}: stages {stage} and {peer} differ")


def _drive(parts: list[_RankProgram], cost: Callable[[Op], float]) -> Timeline:
    where = tuple(part.place for part in parts)
    stages = where[0].stages
    part_of = [parts[where[0].rank_of(stage)] for stage in range(stages)]
    slots: list[Slot] = []
    done: set[Op] = set()
    running: list[tuple[float, int, Op]] = []

    def illegal(why: str, mark: Op | None = None, rank: int | None = None) -> IllegalSchedule:
        integral = all(float(slot.end).is_integer() for slot in slots)
        drawing = grid(slots[-200:], len(where), mark=mark, place=where[0]) if integral else ""
        return IllegalSchedule(f"{why}\n{drawing}".rstrip(), rank, [len(part.ran) for part in parts])

    def advance(part: _RankProgram, ran: Op | None) -> None:
        try:
            part.accepted = next(part.program) if ran is None else part.program.send(ran)
        except StopIteration:
            part.accepted, part.ended = (), True
            if undone := part.missing():
                raise illegal(f"stage {part.place.stage}: {undone}", rank=part.place.rank) from None
        else:
            if not part.accepted:
                raise illegal(f"stage {part.place.stage} accepts no op and has not ended", rank=part.place.rank)

    def start(part: _RankProgram, now: float) -> None:
        for op in part.accepted:
            need = needs(op, stages)
            if need is None or need in done or op.stage not in part.stages:
                if why := part.fault(op):
                    culprit = op if op.stage in part.stages else op._replace(stage=part.place.stage)
                    slots.append(Slot(culprit, now, now + 1))
                    raise illegal(why, culprit, part.place.rank)
                part.run(op)
                part.busy = True
                end = now + cost(op)
                slots.append(Slot(op, now, end))
                heapq.heappush(running, (end, len(slots), op))
                return

    for part in parts:
        advance(part, None)
    now = 0.0
    while not all(part.ended for part in parts):
        for part in parts:
            if not part.busy and not part.ended:
                start(part, now)
        if not running:
            waits = "; ".join(
                f"stage {p.place.stage} waits for {' or '.join(str(needs(op, stages)) for op in p.accepted)}"
                for p in parts
                if not p.ended
            )
            raise illegal(f"deadlock: {waits}")
        now = running[0][0]
        while running and running[0][0] == now:
            op = heapq.heappop(running)[2]
            done.add(message_of(op))
            part = part_of[op.stage]
            part.busy = False
            advance(part, op)
    return Timeline(
        where,
        tuple(slots),
        tuple(part.peak for part in parts),
        tuple(tuple(part.gaps[key] for key in sorted(part.gaps)) for part in parts),
    )
