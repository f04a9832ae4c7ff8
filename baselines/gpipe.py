"""GPipe (Huang et al., 2019): all forward passes of a mini-batch, then all its backward passes, then one update.

The order is what makes GPipe GPipe, and it stands here and nowhere else. With one microbatch per mini-batch it is the
naive pipeline of PipeOptim Figure 1(c). Backward passes run in the order of the microbatches, as PipeOptim draws them
in Figure 1(b), so that gradients add in the same order as everywhere in the suite.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.op import FlushInterval, Kind, Op, Place, Program


@dataclass(frozen=True, slots=True)
class GPipe:
    """All forwards, all backwards, an update; every activation of the mini-batch is alive in between."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for start in range(interval.first, interval.end, interval.microbatches_per_update):
            batch = range(start, min(start + interval.microbatches_per_update, interval.end))
            for index in batch:
                yield (Op(place.stage, Kind.FORWARD, index),)
            for index in batch:
                yield (Op(place.stage, Kind.BACKWARD, index),)
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(start)),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return min(interval.microbatches_per_update, interval.microbatches)
