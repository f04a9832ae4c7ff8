"""Recorded order of one rank: a schedule and a weight policy that repeat it."""

from __future__ import annotations

from dataclasses import dataclass

from suite.core.errors import IllegalSchedule
from suite.core.op import COMPLETES_MICROBATCH, FlushInterval, Kind, Op, Place, Program
from suite.core.protocols import Read, StageVersions, WeightPolicy

Passes = tuple[tuple[Op, Read | None], ...]  # ops of a rank in order, each with the weights it read


@dataclass(frozen=True)
class RecordedSchedule:
    """Schedule that repeats the recorded order of one rank. The order has run, so it is not checked again.

    Attributes:
        passes: Passes of the rank.
        homes: Pipeline rank of each stage.
    """

    passes: Passes
    homes: tuple[int, ...]

    @property
    def split(self) -> bool:
        return any(op.kind is Kind.WEIGHT for op, _ in self.passes)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        for op, _ in self.passes:
            yield (op,)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        in_flight = peak = 0
        for op, _ in self.passes:
            in_flight += (op.kind is Kind.FORWARD) - (op.kind in COMPLETES_MICROBATCH)
            peak = max(peak, in_flight)
        return peak


class RecordedVersions(WeightPolicy):
    """Weight policy that repeats recorded reads, and keeps the versions of later reads.

    Attributes:
        reads: Recorded reads in order.
        position: Number of reads so far.
        last_read: Position of the last read of each version.
        oldest: Oldest version that a later read may need.
    """

    any_placement = True  # the recorded run was checked

    def __init__(self, passes: Passes) -> None:
        self.reads = [(op, read) for op, read in passes if read is not None]
        self.predicts = any(read.predict_steps for _, read in self.reads)
        self.position = 0
        self.last_read = {read.version: position for position, (_, read) in enumerate(self.reads)}
        self.oldest = 0

    def read(self, op: Op, versions: StageVersions) -> Read:
        if self.position >= len(self.reads) or self.reads[self.position][0] != op:
            raise IllegalSchedule(f"{op} is not read number {self.position + 1} of the recorded interval")
        self.position += 1
        return self.reads[self.position - 1][1]

    def needed(self, versions: StageVersions) -> frozenset[int]:
        while self.oldest < versions.updates and not self._is_needed(self.oldest):
            self.oldest += 1
        return frozenset(version for version in range(self.oldest, versions.updates) if self._is_needed(version))

    def _is_needed(self, version: int) -> bool:
        return self.last_read.get(version, -1) >= self.position
