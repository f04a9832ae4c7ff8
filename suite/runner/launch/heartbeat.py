"""Heartbeat monitor for ranks.

A rank that is stuck in a lock or in a kernel call still says every few seconds that it lives, from a thread of its own,
and at which batch it is. One whose process is stopped, or that holds the interpreter for ever, says nothing: its run
ends long before the deadline of a long turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection

_NAMED = 8  # ranks that a reason names one by one


class Heard:
    """When each rank was heard last, and at which batch it was."""

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.at: dict[int, int | None] = {}
        self.began = time.monotonic()

    def begin(self) -> None:
        """Start waiting for these ranks: silence before this moment does not count."""
        self.began = time.monotonic()

    def hear(self, rank: int, at: int | None) -> None:
        self.last[rank] = time.monotonic()
        if at is not None:
            self.at[rank] = at

    def silent(self, ranks: Collection[int], silence: float | None) -> list[int]:
        """The ranks without a message for `silence` seconds; None is for ever."""
        if silence is None:
            return []
        now = time.monotonic()
        return [rank for rank in ranks if now - max(self.began, self.last.get(rank, 0.0)) >= silence]

    def next(self, ranks: Collection[int], silence: float | None) -> float:
        """Seconds until one of `ranks` will have been silent for too long."""
        if silence is None or not ranks:
            return float("inf")
        first = min(max(self.began, self.last.get(rank, 0.0)) for rank in ranks)
        return max(0.0, first + silence - time.monotonic())

    def told(self, ranks: Collection[int]) -> str:
        """When each of some ranks was heard last, in one line."""
        now = time.monotonic()
        words = []
        for rank in list(ranks)[:_NAMED]:
            at = f" at batch {self.at[rank]}" if rank in self.at else ""
            last = self.last.get(rank)
            words.append(
                f"rank {rank} was heard {now - last:.1f} s ago{at}" if last else f"rank {rank} was never heard"
            )
        more = len(ranks) - _NAMED
        return "; ".join([*words, *([f"{more} more"] if more > 0 else [])])
