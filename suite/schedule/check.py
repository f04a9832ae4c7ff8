"""Checker: run a schedule without tensors, processes or a wall clock, and prove that it is legal.

Programs advance in virtual ticks: an op starts when its stage is free and its message is there, messages take no time.
With the default ticks (forward 1, backward 2, update 0) the result is the schedule as the papers draw it; with the op
times of a measured run it is the makespan which those times allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from suite.core.errors import IllegalSchedule, InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program, needs
from suite.core.protocols import Schedule
from suite.schedule.draw import Slot, grid

# stages that a check may look at over all ops: about a minute, and about ten seconds; and ops, which it keeps
MOST, SHORT, OPS = 100_000_000, 20_000_000, 4_000_000
TICKS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.UPDATE: 0.0, Kind.EVALUATE: 1.0}


def ticks(op: Op) -> float:
    """A backward pass takes twice its forward pass (AxoNN Figure 1, SAMO Figure 3)."""
    return TICKS[op.kind]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A legal run. All lists are indexed by stage.

    Attributes:
        slots: Every op with its start and end.
        peak: Most forwards open at once.
        gaps: For each microbatch the updates made between its forward and its backward (the version difference that
            stashing or prediction has to bridge).
    """

    stages: int
    slots: tuple[Slot, ...]
    peak: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]

    @property
    def makespan(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0)

    def order(self, stage: int) -> tuple[Op, ...]:
        """The ops of one stage as they ran: the static order of a transport that needs one."""
        return tuple(slot.op for slot in self.slots if slot.op.stage == stage)

    def idle(self, stage: int) -> float:
        return self.makespan - sum(slot.end - slot.start for slot in self.slots if slot.op.stage == stage)


class _Stage:
    """One stage's program and the laws its ops must keep. bound: forwards in flight at most; None for an evaluation."""

    def __init__(self, program: Program, place: Place, interval: FlushInterval, bound: int | None) -> None:
        self.program, self.place, self.interval, self.bound = program, place, interval, bound
        self.ran: set[Op] = set()
        self.accepted: tuple[Op, ...] = ()
        self.busy = self.ended = False
        self.open: dict[int, int] = {}  # forward -> updates made before it
        self.updates = self.peak = 0
        self.gaps: dict[int, int] = {}

    def fault(self, op: Op) -> str | None:
        """The law that running `op` now would break."""
        interval = self.interval
        if op.stage != self.place.stage:
            return f"{op} belongs to stage {op.stage}, not {self.place.stage}"
        if (op.kind is Kind.EVALUATE) is not (self.bound is None):
            return (
                f"{op} runs in {'an evaluation' if self.bound is None else 'training'}, which its kind has no place in"
            )
        if op in self.ran:
            return f"{op} runs twice"
        if op.kind is Kind.UPDATE:
            if op.index != interval.update + self.updates:
                return f"{op} is out of turn: the next update is {interval.update + self.updates}"
            start = interval.first + self.updates * interval.microbatches_per_update
            missing = [
                i
                for i in range(start, min(start + interval.microbatches_per_update, interval.end))
                if i not in self.gaps
            ]
            return f"{op} comes before the backward of microbatch {missing[0]}" if missing else None
        if not interval.first <= op.index < interval.end:
            return f"{op} is outside the work, microbatches {interval.first} to {interval.end - 1}"
        if op.kind is Kind.BACKWARD and op.index not in self.open:
            return f"{op} comes before its forward"
        if op.kind is Kind.FORWARD and self.bound is not None and len(self.open) >= self.bound:
            return f"{op} would be forward number {len(self.open) + 1} in flight, the schedule promised {self.bound}"
        return None

    def run(self, op: Op) -> None:
        self.ran.add(op)
        if op.kind is Kind.FORWARD:
            self.open[op.index] = self.updates
            self.peak = max(self.peak, len(self.open))
        elif op.kind is Kind.BACKWARD:
            self.gaps[op.index] = self.updates - self.open.pop(op.index)
        elif op.kind is Kind.UPDATE:
            self.updates += 1

    def missing(self) -> str | None:
        """Ops that a finished schedule left undone."""
        if self.bound is None:
            undone = self.interval.microbatches - len(self.ran)
            return f"{undone} microbatches are not evaluated" if undone else None
        unclosed = [i for i in range(self.interval.first, self.interval.end) if i not in self.gaps]
        if unclosed:
            return f"the backward of microbatch {unclosed[0]} never runs"
        if self.updates != self.interval.updates:
            return f"{self.updates} updates of {self.interval.updates} run"
        return None


def check_size(microbatches: int, stages: int, most: int = MOST) -> None:
    """Raises InvalidRequest for an order whose check would look at stages more than `most` times, or keep more than
    OPS."""
    for formula, each, bound in (("stages^2", stages**2, most), ("stages", stages, OPS)):
        if 2 * microbatches * each > bound:
            rule = f"2 * microbatches * {formula} is {2 * microbatches * each}, at most {bound}"
            fits = min(most // (2 * stages**2), OPS // (2 * stages))
            legal = f"{fits} microbatches" if fits else f"{isqrt(most // 2)} stages"
            raise InvalidRequest(f"{microbatches} microbatches on {stages} stages", rule=rule, legal=legal)


def check(
    schedule: Schedule, stages: int, interval: FlushInterval, *, cost: Callable[[Op], float] = ticks, replica: int = 0
) -> Timeline:
    """Run `schedule` on `stages` stages. Raises IllegalSchedule, with the grid so far, for the first broken law:
    each op once, a backward after its forward, updates in turn and complete, no deadlock, the promised in-flight kept.
    Raises InvalidRequest for an order that would be checked for longer than anybody waits.
    """
    check_size(interval.microbatches, stages)
    places = [Place(stage, stages, replica, replica + 1) for stage in range(stages)]
    parts = [_Stage(schedule.program(p, interval), p, interval, schedule.in_flight(p, interval)) for p in places]
    return _drive(parts, stages, cost)


def check_evaluation(
    program: Callable[[Place, FlushInterval], Program], stages: int, interval: FlushInterval
) -> Timeline:
    """The same for a program of evaluation ops."""
    places = [Place(stage, stages) for stage in range(stages)]
    return _drive([_Stage(program(p, interval), p, interval, None) for p in places], stages, ticks)


def _drive(parts: list[_Stage], stages: int, cost: Callable[[Op], float]) -> Timeline:
    slots: list[Slot] = []
    done: set[Op] = set()
    running: list[tuple[float, int, Op]] = []

    def illegal(why: str, mark: Op | None = None) -> IllegalSchedule:
        drawing = grid(slots[-200:], stages, mark=mark) if all(float(s.end).is_integer() for s in slots) else ""
        return IllegalSchedule(f"{why}\n{drawing}".rstrip())

    def advance(part: _Stage, ran: Op | None) -> None:
        try:
            part.accepted = next(part.program) if ran is None else part.program.send(ran)
        except StopIteration:
            part.accepted, part.ended = (), True
            if undone := part.missing():
                raise illegal(f"stage {part.place.stage}: {undone}") from None
        else:
            if not part.accepted:
                raise illegal(f"stage {part.place.stage} accepts no op and has not ended")

    def start(part: _Stage, now: float) -> None:
        for op in part.accepted:
            need = needs(op, stages)
            if need is None or need in done or op.stage != part.place.stage:
                if why := part.fault(op):
                    culprit = op._replace(stage=part.place.stage)
                    slots.append(Slot(culprit, now, now + 1))
                    raise illegal(why, culprit)
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
            done.add(op)
            parts[op.stage].busy = False
            advance(parts[op.stage], op)
    return Timeline(
        stages,
        tuple(slots),
        tuple(part.peak for part in parts),
        tuple(tuple(part.gaps[index] for index in sorted(part.gaps)) for part in parts),
    )
