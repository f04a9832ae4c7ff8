"""DualPipeV pipeline schedule (DeepSeek-V3, arXiv 2412.19437, folded into a V of two chunks per rank).

Forward and backward passes that follow each other in the main phase overlap in DeepSeek's kernels. This schedule holds
their order only: a driver runs them one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Place
from suite.schedule.ordered import Ordered, Pass


@dataclass(frozen=True)
class DualPipeV(Ordered):
    """Order of DualPipeV. A flush needs at least two microbatches per rank.

    Attributes:
        split: Separate the weight gradients of the first and last phase from the backward pass.
    """

    split: bool = True
    chunks = 2
    fold = True

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        if microbatches < 2 * place.ranks:
            raise InvalidRequest(
                f"{microbatches} microbatches per update on {place.ranks} pipeline ranks with DualPipeV",
                rule="at least 2 microbatches per rank",
                legal=f"{2 * place.ranks} microbatches",
            )
        numbers = {(kind, chunk): count() for kind in "FB" for chunk in (0, 1)}
        owed: deque[tuple[int, int]] = deque()  # weight gradients to run, first in first out
        for kind, chunk in _order(place, microbatches):
            if kind is Kind.WEIGHT:
                yield kind, *owed.popleft()
                continue
            which = place.stage_of(chunk), next(numbers["F" if kind is Kind.FORWARD else "B", chunk])
            if kind is Kind.INPUT:
                owed.append(which)
            yield kind, *which


def _order(place: Place, microbatches: int) -> Iterator[tuple[Kind, int]]:
    """(kind, chunk) of each op; the chunk of a weight gradient follows from its input gradient."""
    near, far = place.rank + 1, place.ranks - 1 - place.rank
    f0, f1 = (Kind.FORWARD, 0), (Kind.FORWARD, 1)
    b0, b1 = (Kind.BACKWARD, 0), (Kind.BACKWARD, 1)
    i0, i1, weight = (Kind.INPUT, 0), (Kind.INPUT, 1), (Kind.WEIGHT, 0)
    yield from [f0] * (2 * far)
    yield from [f0, f1] * near
    yield from [i1, weight, f1] * far
    yield from [f0, b1, f1, b0] * (microbatches - 2 * place.ranks + near)
    yield from [b1, f1, b0] * far
    last = [b1, b0] * near
    yield from last[:near]
    yield from (i1 if op is b1 else i0 for op in last[near:])
    yield from [weight, i0] * far
    yield from [weight] * near
