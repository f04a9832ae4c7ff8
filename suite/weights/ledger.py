"""Ledger of weight versions: the versions alive on a stage after each op, and the version that each pass read.

The ledger obeys the same policy as engine.versions and holds no tensor, so a table of versions (PipeOptim Table
II) needs no training run.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from suite.core.errors import InvalidRequest
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, FlushInterval, Kind, Op
from suite.core.protocols import Read, StageVersions, WeightPolicy
from suite.weights.policy import Latest


class LedgerEntry(NamedTuple):
    """`op` read `read` when the stage had made `updates`; its gradient enters update `due`."""

    op: Op
    read: Read
    updates: int
    update: int

    @property
    def staleness(self) -> int:
        """Updates between the weights that were read and those the gradient updates; negative if read ahead."""
        return self.update - self.read.version - self.read.predict_steps


class _StageReads:
    """Forward passes of one stage.

    Attributes:
        open: Reads of the microbatches whose backward pass or weight gradient has not run.
        next: First microbatch whose forward pass has not run.
        early: Microbatches after `next` whose forward pass has run.
    """

    def __init__(self, first: int) -> None:
        self.open: dict[int, Read] = {}
        self.next = first
        self.early: set[int] = set()

    def begin(self, index: int, read: Read) -> None:
        self.open[index] = read
        self.early.add(index)
        while self.next in self.early:
            self.early.remove(self.next)
            self.next += 1


class Ledger:
    """Weight versions of one rank, op by op. All stages of a rank have the same updates.

    `alive` holds the weight copies in memory as pairs (version, predicted updates); `peak` is their largest number.

    Attributes:
        newest_only: Whether every pass reads the newest version, on the graph of its forward pass, and no update is
            made while a microbatch is in flight.
    """

    def __init__(self, policy: WeightPolicy, interval: FlushInterval, stages: int) -> None:
        self.policy, self.interval, self.stages = policy, interval, stages
        self.updates = self.drained_at = interval.update
        self.reads: dict[int, _StageReads] = {}  # by stage
        self.stored: set[int] = {self.updates}
        self.entries: list[LedgerEntry] = []
        self.peak = 1
        self.newest_only = type(policy) is Latest and policy.graph == "keep" and interval.update_interval is None
        self._newest = Read(self.updates, 0, "keep")

    def stage_versions(self, op: Op) -> StageVersions:
        due = op.index if op.kind is Kind.UPDATE else self.interval.update_of(op.index)
        reads = self._reads_of(op.stage)
        next_forward_update = self.interval.update_of(reads.next) if reads.next < self.interval.end else None
        return StageVersions(
            self.updates, due, MappingProxyType(reads.open), self.drained_at, self.stages, next_forward_update
        )

    def _reads_of(self, stage: int) -> _StageReads:
        reads = self.reads.get(stage)
        if reads is None:
            reads = self.reads[stage] = _StageReads(self.interval.first)
        return reads

    @property
    def alive(self) -> set[tuple[int, int]]:
        versions_alive = {
            (read.version, read.predict_steps)
            for reads in self.reads.values()
            for read in reads.open.values()
            if read.backward_mode == "keep"
        }
        return versions_alive | {(version, 0) for version in self.stored}

    def run(self, op: Op) -> Read | None:
        """Account for `op` and return the weights it reads.

        None for an update, for a weight gradient, and for a backward pass in mode `keep`.
        Raises InvalidRequest if the policy reads a version that is not in memory, or predicts from an older version
        than the newest.
        """
        read = None
        reads = self._reads_of(op.stage)
        if self.newest_only:  # what follows, for one version and nothing to free
            return self._run_newest(op, reads)
        if op.kind is Kind.FORWARD:
            read = self.policy.read(op, self.stage_versions(op))
            reads.begin(op.index, read)
        elif op.kind in SENDS_GRADIENT:
            if reads.open[op.index].backward_mode != "keep":
                read = self.policy.read(op, self.stage_versions(op))
        elif op.kind is Kind.UPDATE:
            self.updates += 1
            self.stored.add(self.updates)
            self._free(op)  # a step is in place where no pass will read the version before it
        if read is not None:
            self._check(op, read)
            self.entries.append(LedgerEntry(op, read, self.updates, self.interval.update_of(op.index)))
        if read is not None or op.kind is Kind.UPDATE:  # nothing else adds a copy
            copies = self.alive | ({(read.version, read.predict_steps)} if read else set())
            self.peak = max(self.peak, len(copies))
        if op.kind in COMPLETES_MICROBATCH:
            del reads.open[op.index]
        if op.kind is not Kind.UPDATE:
            self._free(op)
        return read

    def _run_newest(self, op: Op, reads: _StageReads) -> Read | None:
        """`run` for `newest_only`: the update is the last op of the interval."""
        if op.kind is Kind.UPDATE:
            self.updates = self.drained_at = self.updates + 1
            self.stored = {self.updates}
        if op.kind is Kind.FORWARD:
            read = self._newest
            reads.begin(op.index, read)
            self.entries.append(LedgerEntry(op, read, self.updates, self.interval.update_of(op.index)))
            return read
        if op.kind in COMPLETES_MICROBATCH:
            del reads.open[op.index]
        return None

    def _check(self, op: Op, read: Read) -> None:
        if read.version not in self.stored or (read.predict_steps and read.version != self.updates):
            raise InvalidRequest(
                f"{op} reads version {read.version}+{read.predict_steps}, and {sorted(self.stored)} are there",
                rule="a version that the policy has kept, predicted from the newest only",
                legal=f"{self.updates}+{read.predict_steps}",
            )

    def _free(self, op: Op) -> None:
        if self.updates == self.interval.update + self.interval.updates:
            self.drained_at = self.updates  # a last stage is empty between any two passes; the pipeline drains once
        if len(self.stored) == 1:
            return  # the newest stays
        needed = self.policy.needed(self.stage_versions(op))
        self.stored &= {*needed, self.updates}
