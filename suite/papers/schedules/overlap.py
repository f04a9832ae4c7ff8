"""DualPipeV with overlapped pairs: a forward and a backward pass that run together as one op.

DeepSeek's kernels overlap the two passes of a pair; the suite runs them one after the other. Here the backward pass of
a pair takes the time of the pair, and the forward pass follows it and takes none. Both messages thus leave at the end
of the pair. A pair needs both of its messages at its start; `run_with_pairs` checks this.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from suite.claims.answer import Cases, Papers, Question
from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program, message_of, needs
from suite.papers.schedules.orders import PassTimes
from suite.schedule.check import Timeline, check
from suite.schedule.dual_pipe_v import DualPipeV

Group = tuple[Op, ...]  # one op, or the backward and the forward pass of a pair


@dataclass(frozen=True, slots=True)
class PairedDualPipeV:
    """DualPipeV with the two passes of each pair in the order backward, forward."""

    chunks: ClassVar[int] = DualPipeV.chunks
    fold: ClassVar[bool] = DualPipeV.fold
    split: ClassVar[bool] = DualPipeV().split

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for group in groups(place, interval):
            for op in group:
                yield (op,)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return DualPipeV().in_flight(place, interval)


def groups(place: Place, interval: FlushInterval) -> list[Group]:
    """Ops of one rank, with pairs together.

    A forward pass and the whole backward pass that follows it are a pair, except the first ones on the last rank.
    """
    found: list[Group] = []
    single = place.rank == place.ranks - 1
    for (op,) in DualPipeV().program(place, interval):
        follows = bool(found) and len(found[-1]) == 1 and found[-1][0].kind is Kind.FORWARD
        if op.kind is Kind.BACKWARD and follows and not single:
            found[-1] = (op, *found[-1])
        else:
            single = single and op.kind is not Kind.BACKWARD
            found.append((op,))
    return found


def run_with_pairs(ranks: int, microbatches: int, times: PassTimes, pair: float) -> Timeline:
    """Timeline of DualPipeV in which a pair takes `pair`.

    Raises:
        InvalidRequest: The message of a forward pass arrives after its pair has begun.
    """
    interval = FlushInterval(0, microbatches, None, 0)
    places = [Place(rank, ranks, chunks=DualPipeV.chunks, fold=DualPipeV.fold) for rank in range(ranks)]
    pairs = [group for place in places for group in groups(place, interval) if len(group) > 1]
    cost = {op: time for backward, forward in pairs for op, time in ((backward, pair), (forward, 0.0))}
    run = check(PairedDualPipeV(), ranks, interval, cost=lambda op: cost.get(op, times.of_op(op)))
    end = {message_of(slot.op): slot.end for slot in run.slots}
    forwards = {forward for _, forward in pairs}
    for place in places:
        for before, slot in pairwise(run.slots_of(place.rank)):
            need = needs(slot.op, run.stages) if slot.op in forwards else None
            if need is not None and end[need] > before.start:
                raise InvalidRequest(f"{slot.op} of a pair gets its message late", rule="both messages at its start")
    return run


def bubble(question: Question, papers: Papers) -> Cases:
    """Idle time of the rank that idles most, at each point. Idle time of the rank of DualPipeV that idles most, pairs
    as one op, by the checker.

    A point has p ranks, m microbatches, the times F, B and W of a chunk, and FB of a pair.
    """
    values = []
    for point in question.points:
        times = PassTimes(point["F"], point["B"] - point["W"], point["W"])
        run = run_with_pairs(int(point["p"]), int(point["m"]), times, point["FB"])
        busy = [sum(slot.end - slot.start for slot in run.slots_of(place.rank)) for place in run.places]
        values.append(run.makespan - min(busy))
    return [values]
