"""Looped breadth-first pipeline schedule (arXiv 2211.05953): all forward passes, then all backward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.schedule.passes import with_split_passes


@dataclass(frozen=True, slots=True)
class LoopedBFS:
    """Run all microbatches on one chunk before the next chunk.

    Backward passes begin with the last chunk and the last microbatch, as in torch.distributed.pipelining.

    Attributes:
        chunks: Stages per rank.
        split: Run each backward pass as an input gradient and then its weight gradient.
    """

    chunks: int = 2
    split: bool = False
    fold: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise InvalidRequest(f"schedule.chunks={self.chunks}", rule="at least 1 stage per rank", legal="2")

    def program(self, place: Place, interval: FlushInterval) -> Program:
        program = self._whole_program(place, interval)
        return with_split_passes(program) if self.split else program

    def _whole_program(self, place: Place, interval: FlushInterval) -> Program:
        for microbatches in interval.groups():
            for stage in place.held_stages:
                for index in microbatches:
                    yield (Op(stage, Kind.FORWARD, index),)
            for stage in reversed(place.held_stages):
                for index in reversed(microbatches):
                    yield (Op(stage, Kind.BACKWARD, index),)
            yield (Op(place.stage, Kind.UPDATE, interval.update_of(microbatches[0])),)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.chunks * min(interval.microbatches_per_update, interval.microbatches)
