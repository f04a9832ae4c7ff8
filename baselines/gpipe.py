"""GPipe (Huang et al., 2019): all forward passes of a mini-batch, then all its backward passes, then one update.

The order is what makes GPipe GPipe, and it stands here and nowhere else. With one microbatch per mini-batch it is the
naive pipeline of PipeOptim Figure 1(c). Backward passes run in the order of the microbatches, as PipeOptim draws them
in Figure 1(b), so that gradients add in the same order as everywhere in the suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from suite.core.op import Kind, Place
from suite.schedule.ordered import Ordered, Pass


@dataclass(frozen=True)
class GPipe(Ordered):
    """All forwards, all backwards, an update; every activation of the mini-batch is alive in between."""

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            yield from ((kind, place.stage, index) for index in range(microbatches))
