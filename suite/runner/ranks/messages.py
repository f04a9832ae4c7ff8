"""Messages between a rank and its parent: JSON lines over the control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from suite.core.values import Json


class Told(TypedDict, total=False):
    """Facts that a rank reports for the record; a system of the user's may add others.

    Attributes:
        host: Bytes of states on the host, by kind.
        skipped: Batches that overflowed.
        sweeps, curves: Of a stand-in.
    """

    data: Json
    staged: bool
    carrier: str
    order: str
    overlap: str
    host: Mapping[str, int]
    skipped: int
    resumed: Sequence[str]
    notes: Sequence[str]
    sweeps: Sequence[Any]
    curves: Json


class RankReply(TypedDict, total=False):
    """An answer or a sign of life of a rank.

    Attributes:
        event: done, failed, beat or stack.
        at: The batch that is trained.
        text: Stacks of all threads.
        outcome, reason, secondary: Of a failure, and whether another rank's end caused it.
        durations: Seconds of each batch.
        updates, parts: Their phases.
        spans: Rows of the trace of the last batch.
        gemm: flop/s of matrix products.
        memory: Bytes by kind.
    """

    event: str
    at: int | None
    text: str
    outcome: str
    reason: str
    secondary: bool
    data: Json
    staged: bool
    carrier: str
    order: str
    told: Told
    gemm: float
    durations: list[float]
    losses: list[float | None]
    updates: list[Any]
    parts: list[Any]
    spans: list[Any]
    memory: dict[str, int]
    scores: dict[str, float | None]


class RankCommand(TypedDict, total=False):
    """A command to a rank: `do` and its arguments, or with do=meet the address at which the ranks meet."""

    do: str
    batches: int
    host: str
    port: int
    local: bool


class Endpoint(TypedDict):
    """The parent's socket.

    Attributes:
        beat: Seconds between signs of life.
        meets: Whether it tells the ranks where they meet.
    """

    hosts: list[str]
    port: int
    token: str
    beat: float
    meets: bool
