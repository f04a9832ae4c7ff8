"""Heartbeat monitor for ranks.

Each rank sends a heartbeat with the number of its current batch from a thread of its own, even while it waits in a lock
or a system call. A rank whose process is stopped, or that never releases the interpreter lock, sends none: its run
ends long before the deadline of a round.
"""

from __future__ import annotations

import time
from collections.abc import Collection

_MAX_DESCRIBED = 8  # ranks that a description lists one by one


class HeartbeatMonitor:
    """Time of the last message of each rank, and the batch that the rank was training."""

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.batches: dict[int, int] = {}
        self.began = time.monotonic()

    def restart(self) -> None:
        """Start to wait for the ranks: silence before this moment does not count."""
        self.began = time.monotonic()

    def record(self, rank: int, batch: int | None) -> None:
        """Record a message of a rank that is training `batch`."""
        self.last[rank] = time.monotonic()
        if batch is not None:
            self.batches[rank] = batch

    def silent_ranks(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        """The ranks without a message for `timeout` seconds; none for a timeout of None."""
        if timeout is None:
            return []
        now = time.monotonic()
        return [rank for rank in ranks if now - max(self.began, self.last.get(rank, 0.0)) >= timeout]

    def seconds_until_timeout(self, ranks: Collection[int], timeout: float | None) -> float:
        """Seconds until the first of `ranks` reaches the timeout, if no message arrives."""
        if timeout is None or not ranks:
            return float("inf")
        first = min(max(self.began, self.last.get(rank, 0.0)) for rank in ranks)
        return max(0.0, first + timeout - time.monotonic())

    def describe(self, ranks: Collection[int]) -> str:
        """The time since the last message of each rank, in one line."""
        now = time.monotonic()
        parts = []
        for rank in list(ranks)[:_MAX_DESCRIBED]:
            batch = f" at batch {self.batches[rank]}" if rank in self.batches else ""
            last = self.last.get(rank)
            parts.append(
                f"last heartbeat of rank {rank} {now - last:.1f} s ago{batch}"
                if last
                else f"no heartbeat of rank {rank}"
            )
        more = len(ranks) - _MAX_DESCRIBED
        return "; ".join([*parts, *([f"{more} more"] if more > 0 else [])])
