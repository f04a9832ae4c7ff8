"""Ops: the unit of work of a schedule, and the ops that each op needs.

Everything that orders, runs, draws, times or replays a pipeline speaks in these four values. Communication is never
written by hand: it follows from `needs`, and sends are its inverse, `feeds`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from suite.core.errors import InvalidRequest


class Kind(StrEnum):
    """Kind of an op on its stage.

    A split backward pass is two ops: INPUT makes the gradient of the stage's input, WEIGHT those of its weights
    (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, Section 2, which calls them B and W).
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"
    UPDATE = "U"
    EVALUATE = "E"  # numbered apart from training, newest weights, no graph, no weight policy


SENDS_GRADIENT = (Kind.BACKWARD, Kind.INPUT)
"""Kinds that send the gradient of the stage's input to the previous stage."""
COMPLETES_MICROBATCH = (Kind.BACKWARD, Kind.WEIGHT)
"""Kinds after which a stage keeps nothing of the microbatch's forward pass."""


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
            raise InvalidRequest(f"{text!r} is not an op", rule=f"stage, one of {' '.join(Kind)}, index", legal="'2F7'")
        return cls(int(match[1]), Kind(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program runs: pipeline rank `rank` of `ranks`, in `replica` of `replicas`.

    A rank holds `chunks` stages. Schedules read ranks and stages only; the replica selects data and random numbers.

    Attributes:
        chunks: Stages per rank.
        fold: False: stage s is on rank s mod ranks (interleaved pipelines). True: every second chunk returns in the
            opposite direction, so that with two chunks rank r holds stages r and 2 ranks - 1 - r (V schedules,
            arXiv 2405.15362).
        homes: Rank of each stage, for a placement that is neither of these; it replaces `chunks` and `fold`.
    """

    rank: int
    ranks: int
    replica: int = 0
    replicas: int = 1
    chunks: int = 1
    fold: bool = False
    homes: tuple[int, ...] | None = None

    @property
    def stage(self) -> int:
        """First stage of this rank; the only one where a rank holds one chunk."""
        return self.rank if self.homes is None else self.homes.index(self.rank)

    @property
    def stages(self) -> int:
        """Stages of the whole pipeline."""
        return self.ranks * self.chunks if self.homes is None else len(self.homes)

    @property
    def first(self) -> bool:
        """Whether this rank holds the first stage."""
        return self.rank == self.rank_of(0)

    @property
    def last(self) -> bool:
        """Whether this rank holds the last stage."""
        return self.rank == self.rank_of(self.stages - 1)

    def stage_of(self, chunk: int) -> int:
        """Stage of this rank's chunk number `chunk`, counted from 0."""
        if self.homes is not None:
            return self.held_stages[chunk]
        reverse = self.fold and chunk % 2
        return chunk * self.ranks + (self.ranks - 1 - self.rank if reverse else self.rank)

    @property
    def held_stages(self) -> tuple[int, ...]:
        """Stages of this rank, in the order of the forward pass."""
        if self.homes is not None:
            return tuple(stage for stage, home in enumerate(self.homes) if home == self.rank)
        return tuple(self.stage_of(chunk) for chunk in range(self.chunks))

    def chunk_of(self, stage: int) -> int:
        """Number of the stages before `stage` on its rank."""
        return stage // self.ranks if self.homes is None else self.homes[:stage].count(self.homes[stage])

    def rank_of(self, stage: int) -> int:
        """Pipeline rank that holds `stage`."""
        if self.homes is not None:
            return self.homes[stage]
        chunk, position = divmod(stage, self.ranks)
        return self.ranks - 1 - position if self.fold and chunk % 2 else position


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

    def groups(self) -> Iterator[range]:
        """Microbatches of each update, in order."""
        for start in range(self.first, self.end, self.microbatches_per_update):
            yield range(start, min(start + self.microbatches_per_update, self.end))

    def completes_update(self, index: int) -> bool:
        """Whether microbatch `index` is the last one of its update."""
        return index == self.end - 1 or (index - self.first + 1) % self.microbatches_per_update == 0


EVALUATION_CAPACITY = 8
"""Evaluation values that may wait unreceived for one stage."""

Program = Generator[tuple[Op, ...], Op, None]


def only_order(program: Program) -> tuple[Op, ...] | None:
    """The ops of a program that accepts one op at a time, in order; None for a program that accepts several."""
    ops, accepted = [], next(program, ())
    while accepted:
        if len(accepted) > 1:
            return None
        ops.append(accepted[0])
        try:
            accepted = program.send(accepted[0])
        except StopIteration:
            break
    return tuple(ops)


"""Yields the ops it would accept next, in order of preference; is sent the one that ran."""

_made = tuple.__new__  # equals Op(...) without the call: simulators request a neighbour a million times


def message_of(op: Op) -> Op:
    """Name of the value that `op` sends: a gradient has one name, whether B or I made it."""
    return _made(Op, (op.stage, Kind.BACKWARD, op.index)) if op.kind is Kind.INPUT else op


def needs(op: Op, stages: int) -> Op | None:
    """The neighbour's message that `op` consumes; None if the stage itself holds all inputs of `op`."""
    if op.kind in (Kind.FORWARD, Kind.EVALUATE):
        return _made(Op, (op.stage - 1, op.kind, op.index)) if op.stage > 0 else None
    if op.kind in SENDS_GRADIENT:
        return _made(Op, (op.stage + 1, Kind.BACKWARD, op.index)) if op.stage < stages - 1 else None
    return None


def feeds(op: Op, stages: int) -> Op | None:
    """The neighbour's op that consumes the message of `op`, named by `message_of`: the inverse of `needs`."""
    if op.kind in (Kind.FORWARD, Kind.EVALUATE):
        return _made(Op, (op.stage + 1, op.kind, op.index)) if op.stage < stages - 1 else None
    if op.kind in SENDS_GRADIENT:
        return _made(Op, (op.stage - 1, Kind.BACKWARD, op.index)) if op.stage > 0 else None
    return None
