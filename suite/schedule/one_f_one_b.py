"""1F1B schedule (PipeDream-flush, or an update every k microbatches), and the order of an evaluation.

After a warm-up of S - 1 - stage forwards each stage alternates one forward and one backward, so that at most S - stage
activations are alive. With `update_every` the same order never drains: PipeDream, SpecTrain and PipeOptim update after
every backward (PipeOptim Figure 1(d)), 2BW after every m.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.op import FlushInterval, Kind, Op, Place, Program


@dataclass(frozen=True, slots=True)
class OneFOneB:
    """One forward, one backward; the updates are the work's."""

    def program(self, place: Place, work: FlushInterval) -> Program:
        warm_up = place.stages - 1 - place.stage
        for index in range(work.first, work.end + warm_up):
            if index < work.end:
                yield (Op(place.stage, Kind.FORWARD, index),)
            done = index - warm_up
            if done >= work.first:
                yield (Op(place.stage, Kind.BACKWARD, done),)
                if work.closes(done):
                    yield (Op(place.stage, Kind.UPDATE, work.due(done)),)

    def in_flight(self, place: Place, work: FlushInterval) -> int:
        return min(place.stages - place.stage, work.microbatches)


def evaluation(place: Place, work: FlushInterval) -> Program:
    """Forward passes only: one order serves every schedule."""
    for index in range(work.first, work.end):
        yield (Op(place.stage, Kind.EVALUATE, index),)
