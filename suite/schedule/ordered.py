"""Base of the schedules whose ranks run a fixed order: a subclass gives the order of one update.

@dataclass(frozen=True)
class GPipe(Ordered):
    def order(self, place, microbatches):
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            yield from ((kind, place.stage, index) for index in range(microbatches))
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from suite.core.op import COMPLETES_MICROBATCH, FlushInterval, Kind, Op, Place, Program

Pass = tuple[Kind, int, int]  # kind, stage, number of the microbatch in its update


class Ordered:
    """Schedule of a fixed order of passes.

    Attributes:
        chunks: Stages per rank.
        fold: Whether every second chunk returns in the opposite direction (`suite.core.op.Place`).
        split: Separate the weight gradients from the backward passes.
    """

    chunks: int = 1
    fold: bool = False
    split: bool = False

    def order(self, place: Place, microbatches: int) -> Iterable[Pass]:
        """Passes of a rank for one update of `microbatches` microbatches."""
        raise NotImplementedError

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for microbatches in interval.groups():
            for kind, stage, number in _passes(self, place, len(microbatches)):
                yield (Op(stage, kind, microbatches[number]),)
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(microbatches[0])),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return max(_peak(self, place, count) for count in {len(group) for group in interval.groups()})


@lru_cache(maxsize=256)
def _passes(schedule: Ordered, place: Place, microbatches: int) -> tuple[Pass, ...]:
    """The order with whole or split backward passes, if it is published with the other ones.

    An input gradient of a split pass runs first, so that its message leaves before the weight gradient runs.
    """
    order = tuple(schedule.order(place, microbatches))
    if not schedule.split:
        whole = {Kind.INPUT: Kind.BACKWARD}
        return tuple((whole.get(kind, kind), stage, n) for kind, stage, n in order if kind is not Kind.WEIGHT)
    if any(kind is Kind.WEIGHT for kind, _, _ in order):
        return order
    parts = {Kind.BACKWARD: (Kind.INPUT, Kind.WEIGHT)}
    return tuple((part, stage, n) for kind, stage, n in order for part in parts.get(kind, (kind,)))


@lru_cache(maxsize=4096)
def _peak(schedule: Ordered, place: Place, microbatches: int) -> int:
    """Most forward passes at once whose backward pass or weight gradient has not run."""
    alive = peak = 0
    for kind, _, _ in _passes(schedule, place, microbatches):
        alive += (kind is Kind.FORWARD) - (kind in COMPLETES_MICROBATCH)
        peak = max(peak, alive)
    return peak
