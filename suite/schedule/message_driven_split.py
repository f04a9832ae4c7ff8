"""Message-driven schedules with a split backward pass: weight gradients fill the time without a message.

No paper has them: they combine AxoNN's order (AxoNN, Algorithm 2) with the split of arXiv 2401.10241. A weight gradient
needs no message, so a driver never waits while it accepts one. A weight gradient that has begun delays a message that
arrives meanwhile. On a chain each rank therefore accepts one only if it owes more than `late` for each rank before it,
if no other op is left, or if memory is full. On a V `late` is 0 by default, so it accepts one whenever it owes one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.schedule.passes import with_whole_passes


@dataclass(frozen=True, slots=True)
class MessageDrivenSplit:
    """Input gradients first, then forward passes, then weight gradients, each as its message arrives.

    Attributes:
        cap: Most activations held on a rank: forward passes without their weight gradient. None: 2 ranks - 1, the
            memory of ZB-H2. One more hides the latency of messages.
        late: Weight gradients that rank r may owe, as a multiple of r.
        split: Separate the weight gradients from the backward pass.
    """

    cap: int | None = None
    late: int = 2
    split: bool = True
    chunks: ClassVar[int] = 1
    fold: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.cap, 1, "1 activation", self.late)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        program = self._split_program(place, interval)
        return program if self.split else with_whole_passes(program)

    def _split_program(self, place: Place, interval: FlushInterval) -> Program:
        cap, late = self.in_flight(place, interval), self.late * place.rank
        for microbatches in interval.groups():
            forward = backward = weight = microbatches.start
            while weight < microbatches.stop:
                accepted = []
                if backward < forward:
                    accepted.append(Op(place.stage, Kind.INPUT, backward))
                if forward < microbatches.stop and forward - weight < cap:
                    accepted.append(Op(place.stage, Kind.FORWARD, forward))
                full = forward - weight == cap
                if weight < backward and (backward - weight > late or full or not accepted):
                    accepted.append(Op(place.stage, Kind.WEIGHT, weight))
                ran = yield tuple(accepted)
                forward += ran.kind is Kind.FORWARD
                backward += ran.kind is Kind.INPUT
                weight += ran.kind is Kind.WEIGHT
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(microbatches.start)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        count = min(interval.microbatches_per_update, interval.microbatches)
        return min(self.cap or 2 * place.ranks - 1, count)


@dataclass(frozen=True, slots=True)
class MessageDrivenV:
    """The message-driven order on a V of two chunks per rank, at the memory of ZBV by default.

    A rank prefers the passes of its second chunk, because they are nearer to the end of the pipeline. It keeps one
    activation free for the second chunk; without it the pipeline would deadlock.

    Attributes:
        cap: Most activations held on a rank. None: 2 ranks, the memory of ZBV.
        late: Weight gradients that rank r may owe, as a multiple of r.
        split: Separate the weight gradients from the backward pass.
    """

    cap: int | None = None
    late: int = 0
    split: bool = True
    chunks: ClassVar[int] = 2
    fold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.cap, 2, "2 activations, one for each chunk", self.late)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        program = self._split_program(place, interval)
        return program if self.split else with_whole_passes(program)

    def _split_program(self, place: Place, interval: FlushInterval) -> Program:
        cap, late = self.cap or 2 * place.ranks, self.late * place.rank
        near, far = place.stage_of(0), place.stage_of(1)
        for microbatches in interval.groups():
            start, stop = microbatches.start, microbatches.stop
            forward, backward = {near: start, far: start}, {near: start, far: start}
            owed: deque[tuple[int, int]] = deque()  # (stage, microbatch), first in first out
            activations = 0
            while owed or backward[near] < stop or backward[far] < stop:
                accepted = []
                for stage, room in ((far, cap), (near, cap if owed else cap - 1)):
                    if backward[stage] < forward[stage]:
                        accepted.append(Op(stage, Kind.INPUT, backward[stage]))
                    reachable = stage == near or forward[far] < forward[near]
                    if forward[stage] < stop and activations < room and reachable:
                        accepted.append(Op(stage, Kind.FORWARD, forward[stage]))
                if owed and (len(owed) > late or activations == cap or not accepted):
                    accepted.append(Op(owed[0][0], Kind.WEIGHT, owed[0][1]))
                ran = yield tuple(accepted)
                if ran.kind is Kind.FORWARD:
                    forward[ran.stage] += 1
                    activations += 1
                elif ran.kind is Kind.INPUT:
                    backward[ran.stage] += 1
                    owed.append((ran.stage, ran.index))
                else:
                    owed.popleft()
                    activations -= 1
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(start)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        count = min(interval.microbatches_per_update, interval.microbatches)
        return min(self.cap or 2 * place.ranks, 2 * count)


def _check(cap: int | None, least: int, activations: str, late: int) -> None:
    if cap is not None and cap < least:
        raise InvalidRequest("schedule.cap", cap, rule=f"at least {activations}", legal="schedule.cap=null")
    if late < 0:
        raise InvalidRequest("schedule.late", late, rule="at least 0 weight gradients", legal="schedule.late=0")
