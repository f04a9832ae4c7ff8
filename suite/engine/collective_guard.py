"""Collective error handling: all ranks continue, or all raise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import World

_DIGEST_BYTES = 6  # a double holds such a digest exactly
_COMPLEMENT = 2.0 ** (8 * _DIGEST_BYTES + 1)


class CollectiveGuard:
    """Reductions over all ranks of a grid that keep their decisions equal.

    Attributes:
        size: Ranks of the grid.
        replica: Replica of this rank.
        progress: Drives messages while this rank waits.
    """

    def __init__(self, world: World, size: int, replica: int, progress: Callable[[], None]) -> None:
        self.world, self.size, self.replica, self.progress = world, size, replica, progress

    def max(self, number: int) -> int:
        """The largest `number` of all ranks."""
        return number if self.size == 1 else int(self.world.all_reduce_scalar(float(number), "max", self.progress))

    def sum_over_stages(self, number: float) -> float:
        """The sum of one number per stage; all replicas of a stage hold the same number."""
        local = number if self.replica == 0 else 0.0
        return number if self.size == 1 else self.world.all_reduce_scalar(local, "sum", self.progress)

    @contextmanager
    def all_or_none(self, action: str) -> Iterator[None]:
        """Context in which an error of one rank raises on every rank; `action` is a clause for the other ranks."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        worst = self.max(0 if error is None else 2 * self.world.rank + 1 + isinstance(error, InvalidRequest))
        if error is not None:
            raise error
        if worst:
            error_class = RankError if worst % 2 else InvalidRequest
            raise error_class(f"{action}: rank {(worst - 1) // 2} failed and reports the reason")

    def all_equal(self, data: bytes | None) -> bool:
        """Whether all ranks that contribute `data` contribute the same bytes. Every rank calls it."""
        if self.size == 1:
            return True
        code = 0
        if data is not None:
            code = 1 + int.from_bytes(hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest(), "big")
        largest = self.world.all_reduce_scalar(float(code), "max", self.progress)
        complement = _COMPLEMENT - code if data is not None else 0.0
        smallest = _COMPLEMENT - self.world.all_reduce_scalar(complement, "max", self.progress)
        return largest in (0.0, smallest)
