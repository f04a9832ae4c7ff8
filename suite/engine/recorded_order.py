"""Recorded order of one rank: a schedule and a weight policy that repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import IllegalSchedule
from suite.core.op import FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Read, StageVersions, WeightPolicy

Passes = tuple[tuple[Op, Read | None], ...]  # the ops of a rank in order, each with its read


@dataclass(frozen=True)
class Recorded:
    """The order of one rank as it was recorded. It has run, so it is not checked again."""

    passes: Passes

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for op, _ in self.passes:
            yield (op,)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        open_ = most = 0
        for op, _ in self.passes:
            open_ += (op.kind is Kind.FORWARD) - (op.kind is Kind.BACKWARD)
            most = max(most, open_)
        return most


class Versions(WeightPolicy):
    """A weight policy that reads what was recorded, in that order, and keeps what is still to be read."""

    def __init__(self, passes: Passes) -> None:
        self.reads = [(op, read) for op, read in passes if read is not None]
        self.predicts = any(read.predict_steps for _, read in self.reads)
        self.at = 0
        self.last = {read.version: place for place, (_, read) in enumerate(self.reads)}  # place of its last read
        self.start = 0  # every version before it has had its last read

    def read(self, op: Op, versions: StageVersions) -> Read:
        if self.at >= len(self.reads) or self.reads[self.at][0] != op:
            raise IllegalSchedule(f"{op} reads, which it did not do at this place of the one work that was recorded")
        self.at += 1
        return self.reads[self.at - 1][1]

    def needed(self, versions: StageVersions) -> frozenset[int]:
        while self.start < versions.updates and self.last.get(self.start, -1) < self.at:
            self.start += 1
        return frozenset(v for v in range(self.start, versions.updates) if self.last.get(v, -1) >= self.at)
