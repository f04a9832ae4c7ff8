"""Ops: the unit of work of a schedule, and the ops that each op needs.

Everything that orders, runs, draws, times or replays a pipeline speaks in these four values. Communication is never
written by hand: it follows from `needs`, and sends are its inverse, `feeds`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from suite.core.errors import InvalidRequest


class Kind(StrEnum):
    """Kind of an op on its stage. The set is open: a split backward pass adds a letter and a line in `needs`."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"
    EVALUATE = "E"  # numbered apart from training, newest weights, no graph, no weight policy


class Op(NamedTuple):
    """One op of `kind` on `stage`. `index` is the microbatch (F, B, E) or the update (U), over the whole training.

    >>> str(Op(2, Kind.FORWARD, 7)), Op.parse("2F7")
    ('2F7', Op(stage=2, kind=<Kind.FORWARD: 'F'>, index=7))
    """

    stage: int
    kind: Kind
    index: int  # type: ignore[assignment]  # tuple.index is not used on an op

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.index}"

    @classmethod
    def parse(cls, text: str) -> Op:
        """Read what `str` prints. Raises InvalidRequest for anything else."""
        match = re.fullmatch(rf"(\d+)([{''.join(Kind)}])(\d+)", text, re.ASCII)
        if match is None:
            raise InvalidRequest(f"{text!r} is not an op", rule="stage, one of F B U E, index", legal="'2F7'")
        return cls(int(match[1]), Kind(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: `stage` of `stages`, in `replica` of `replicas`.

    Schedules read the stage only; the replica selects data and random numbers.
    """

    stage: int
    stages: int
    replica: int = 0
    replicas: int = 1

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1


@dataclass(frozen=True, slots=True)
class FlushInterval:
    """Microbatches from one pipeline drain to the next: `first`, `first + 1`, ..., `end - 1`.

    Indices never restart during a training, so two intervals never share an op.

    Attributes:
        first: Index of the first microbatch.
        microbatches: Number of microbatches, at least 1.
        update_interval: Microbatches per update. None is a flush: one update at the end. A shorter last group also
            updates, so that a drain leaves no pending gradient.
        update: Number of the first update in this interval.
    """

    first: int
    microbatches: int
    update_interval: int | None
    update: int

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise InvalidRequest("microbatches", self.microbatches, rule="at least 1", legal="1")
        if self.update_interval is not None and self.update_interval < 1:
            rule = "at least 1, or None for a flush"
            raise InvalidRequest("update_interval", self.update_interval, rule=rule, legal="1")

    @property
    def end(self) -> int:
        """Index after the last microbatch."""
        return self.first + self.microbatches

    @property
    def microbatches_per_update(self) -> int:
        """Microbatches in a full update group."""
        return self.update_interval or self.microbatches

    @property
    def updates(self) -> int:
        """Number of updates in this interval."""
        return -(-self.microbatches // self.microbatches_per_update)

    def update_of(self, index: int) -> int:
        """Number of the update that includes the gradient of microbatch `index`."""
        return self.update + (index - self.first) // self.microbatches_per_update

    def group_size(self, index: int) -> int:
        """Number of microbatches in the update of microbatch `index`.

        The loss is divided by this number times the number of replicas.
        """
        start = (self.update_of(index) - self.update) * self.microbatches_per_update
        return min(self.microbatches_per_update, self.microbatches - start)

    def completes_update(self, index: int) -> bool:
        """Whether microbatch `index` is the last one of its update."""
        return index == self.end - 1 or (index - self.first + 1) % self.microbatches_per_update == 0


Program = Generator[tuple[Op, ...], Op, None]
"""Yields the ops it would accept next, in order of preference; is sent the one that ran."""

_made = tuple.__new__  # equals Op(...) without the call: simulators request a neighbour a million times


def needs(op: Op, stages: int) -> Op | None:
    """The neighbour's op whose output `op` consumes; None if it can start from what its own stage holds."""
    if op.kind in (Kind.FORWARD, Kind.EVALUATE):
        return _made(Op, (op.stage - 1, op.kind, op.index)) if op.stage > 0 else None
    if op.kind is Kind.BACKWARD:
        return _made(Op, (op.stage + 1, op.kind, op.index)) if op.stage < stages - 1 else None
    return None


def feeds(op: Op, stages: int) -> Op | None:
    """The neighbour's op that consumes the output of `op`: the inverse of `needs`."""
    if op.kind in (Kind.FORWARD, Kind.EVALUATE):
        return _made(Op, (op.stage + 1, op.kind, op.index)) if op.stage < stages - 1 else None
    if op.kind is Kind.BACKWARD:
        return _made(Op, (op.stage - 1, op.kind, op.index)) if op.stage > 0 else None
    return None
