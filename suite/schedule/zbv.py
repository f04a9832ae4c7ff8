"""ZBV pipeline schedule (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, Section 6).

Two chunks per rank in a V: rank r holds stages r and 2 ranks - 1 - r. With equal times of forward pass, input gradient
and weight gradient no rank idles between its first and its last op, at the memory of 1F1B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from suite.core.op import Kind, Place
from suite.schedule.ordered import Ordered, Pass

F, I, W = Kind.FORWARD, Kind.INPUT, Kind.WEIGHT  # noqa: E741 - the letters of the paper


@dataclass(frozen=True)
class ZBV(Ordered):
    """Fixed order of ZBV for equal op times; torch and Primus run the same order.

    Attributes:
        split: Separate the weight gradients from the backward pass.
    """

    split: bool = True
    chunks = 2
    fold = True

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        for kind, chunk, number in _order(place, microbatches):
            if number < microbatches:
                yield kind, place.stage_of(chunk), number


def _order(place: Place, microbatches: int) -> Iterator[tuple[Kind, int, int]]:
    """(kind, chunk, number of the microbatch) of each op; numbers above the last microbatch are left out later."""
    total = max(microbatches, 2 * place.ranks - 1)
    before, after = place.rank, place.ranks - place.rank
    numbers = {(kind, chunk): count() for kind in (F, I, W) for chunk in (0, 1)}
    ran = dict.fromkeys(numbers, 0)

    def ops(*kinds: tuple[Kind, int], times: int) -> Iterator[tuple[Kind, int, int]]:
        for _ in range(times):
            for key in kinds:
                ran[key] += 1
                yield *key, next(numbers[key])

    yield from ops((F, 0), times=2 * after - 1)
    yield from ops((F, 1), (F, 0), times=before)
    yield from ops((F, 1), (I, 1), (W, 1), times=after)
    yield from ops((F, 0), (I, 0), (W, 0), (F, 1), (I, 1), (W, 1), times=total - ran[F, 0])
    yield from ops((I, 0), (W, 0), (F, 1), (I, 1), (W, 1), times=total - ran[F, 1])
    yield from ops((I, 0), (I, 1), times=before)
    yield from ops((I, 0), (W, 0), times=after)
    yield from ops((W, 1), times=total - ran[W, 1])
    yield from ops((W, 0), times=total - ran[W, 0])
