"""Messages between a rank and its parent: JSON over one connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from suite.core.values import Json


class RankFacts(TypedDict, total=False):
    """Facts that a rank reports for the record. A user's system may add others.

    Attributes:
        data: Provenance of the data.
        staged: Whether messages are staged through host memory.
        carrier: Library that carries the messages.
        order: Message order, `static` or `dynamic`.
        overlap: Overlap of optimizer steps and reductions, or the reason why there is none.
        host: Bytes of states in host memory by kind.
        skipped: Number of batches skipped for overflow.
        at_start: Notes about the start of a rank.
        notes: Notes of the system.
        sweeps: Samples of a microbenchmark, one per timed batch.
        curves: Names of the curves of a microbenchmark.
    """

    data: Json
    staged: bool
    carrier: str
    order: str
    overlap: str
    host: Mapping[str, int]
    skipped: int
    at_start: Sequence[str]
    notes: Sequence[str]
    sweeps: Sequence[Any]
    curves: Json


class RankReply(TypedDict, total=False):
    """An answer or a heartbeat of a rank.

    Attributes:
        event: `done`, `failed` or `beat`.
        batch: Number of the batch that is being trained.
        outcome: Outcome of a failure.
        reason: Reason of a failure.
        secondary: Whether the end of another rank caused the failure.
        facts: Facts for the record.
        gemm: Rate of matrix products in flop/s.
        durations: Seconds of each batch.
        cpu: CPU seconds of all batches, on all threads.
        losses: Loss of each batch.
        updates: Begin and duration of each batch's update.
        parts: Seconds of each batch by category of inner spans.
        spans: Rows of the last batch's trace.
        memory: Bytes by kind, of each rank whose ops the process runs.
        peaks: Peak bytes of the GPU by its allocator.
        scores: Validation scores by name.
    """

    event: str
    batch: int | None
    outcome: str
    reason: str
    secondary: bool
    facts: RankFacts
    gemm: float
    durations: list[float]
    cpu: float
    losses: list[float | None]
    updates: list[Any]
    parts: list[Any]
    spans: list[Any]
    memory: list[dict[str, int]]
    peaks: dict[str, int]
    scores: dict[str, float | None]


class RankCommand(TypedDict, total=False):
    """A command to a rank: `do` and its arguments.

    Attributes:
        do: A method of the rank, `stop` (close and end) or `exit` (end at once). `meet` carries the address at which
            the ranks meet.
        seconds: Limit after which the parent gives up.
        batches: Number of batches.
        host, port: Address of rank 0; an empty host is the parent's.
    """

    do: str
    seconds: float
    batches: int
    host: str
    port: int


class Hello(TypedDict):
    """First message of a rank.

    Attributes:
        rank: Number of the rank.
        pid: Process id of the rank.
        host: Host name of the rank.
        port: A free port, on which rank 0 may wait for the other ranks.
    """

    rank: int
    pid: int
    host: str
    port: int
