"""Looped breadth-first pipeline schedule (arXiv 2211.05953): all forward passes, then all backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Place
from suite.schedule.ordered import Ordered, Pass


@dataclass(frozen=True)
class LoopedBFS(Ordered):
    """Run all microbatches on one chunk before the next chunk.

    Backward passes begin with the last chunk and the last microbatch, as in torch.distributed.pipelining.

    Attributes:
        chunks: Stages per rank.
        split: Run each backward pass as an input gradient and then its weight gradient.
    """

    chunks: int = 2
    split: bool = False

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise InvalidRequest(f"schedule.chunks={self.chunks}", rule="at least 1 stage per rank", legal="2")

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        forward = [(stage, index) for stage in place.held_stages for index in range(microbatches)]
        yield from ((Kind.FORWARD, *which) for which in forward)
        yield from ((Kind.BACKWARD, *which) for which in reversed(forward))
