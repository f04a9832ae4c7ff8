"""1F1B pipeline schedule.

After a warm-up of S - 1 - stage forward passes, each stage alternates one forward and one backward pass. At most
S - stage microbatches have activations in memory. With `update_interval` the same order runs without draining:
PipeDream, SpecTrain and PipeOptim update after every backward pass (PipeOptim Figure 1(d)), 2BW after every m.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from suite.core.op import EVALUATION_CAPACITY, FlushInterval, Kind, Op, Place, Program


@dataclass(frozen=True, slots=True)
class OneFOneB:
    """One forward pass, one backward pass; the flush interval places the updates."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        warm_up = place.stages - 1 - place.stage
        for index in range(interval.first, interval.end + warm_up):
            if index < interval.end:
                yield (Op(place.stage, Kind.FORWARD, index),)
            done = index - warm_up
            if done >= interval.first:
                yield (Op(place.stage, Kind.BACKWARD, done),)
                if interval.completes_update(done):
                    yield (Op(place.stage, Kind.UPDATE, interval.update_of(done)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return min(place.stages - place.stage, interval.microbatches)


def evaluation(place: Place, interval: FlushInterval) -> Program:
    """Forward passes only, for evaluation with any schedule.

    A rank accepts the next microbatch of each of its stages, the last stage first. A stage runs at most
    EVALUATION_CAPACITY microbatches ahead of the rank's next stage, so that no send between them blocks: senders that
    wait for each other around a loop or a V would deadlock.
    """
    stages = place.held_stages
    following = dict(pairwise(stages))
    upcoming = dict.fromkeys(stages, interval.first)  # next microbatch of each stage
    while True:
        accepted = tuple(
            Op(stage, Kind.EVALUATE, upcoming[stage])
            for stage in reversed(stages)
            if upcoming[stage] < interval.end
            and (stage not in following or upcoming[stage] - upcoming[following[stage]] < EVALUATION_CAPACITY)
        )
        if not accepted:
            return
        ran = yield accepted
        upcoming[ran.stage] += 1
