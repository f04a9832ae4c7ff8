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
        least = f"at least {self.chunks} activation{'s, one for each chunk' if self.chunks > 1 else ''}"
        if self.cap is not None and self.cap < self.chunks:
            raise InvalidRequest("schedule.cap", self.cap, rule=least, legal="schedule.cap=null")
        if self.late < 0:
            raise InvalidRequest("schedule.late", self.late, "at least 0 weight gradients", "schedule.late=0")

    def program(self, place: Place, interval: FlushInterval) -> Program:
        program = self._split_program(place, interval)
        return program if self.split else with_whole_passes(program)

    def _split_program(self, place: Place, interval: FlushInterval) -> Program:
        """The last stage of the rank comes first, because its passes are nearer to the end of the pipeline."""
        cap, late, stages = self.in_flight(place, interval), self.late * place.rank, place.held_stages
        for microbatches in interval.groups():
            start, stop = microbatches.start, microbatches.stop
            forward, backward = dict.fromkeys(stages, start), dict.fromkeys(stages, start)
            owed: deque[tuple[int, int]] = deque()  # (stage, microbatch), first in first out
            activations = 0
            while owed or min(backward.values()) < stop:
                accepted = []
                for chunk, stage in reversed([*enumerate(stages)]):
                    if backward[stage] < forward[stage]:
                        accepted.append(Op(stage, Kind.INPUT, backward[stage]))
                    kept_free = chunk < len(stages) - 1 and not owed  # or the next chunk would deadlock
                    reachable = stop if chunk == 0 else forward[stages[chunk - 1]]
                    if forward[stage] < reachable and activations < cap - kept_free:
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
        return min(self.cap or 2 * place.ranks - 2 + self.chunks, self.chunks * count)


@dataclass(frozen=True, slots=True)
class MessageDrivenV(MessageDrivenSplit):
    """The message-driven order on a V of two chunks per rank; without `cap`, with the 2 ranks activations of ZBV.

    It keeps one activation free for the second chunk; without it the pipeline would deadlock.
    """

    late: int = 0
    chunks: ClassVar[int] = 2
    fold: ClassVar[bool] = True
