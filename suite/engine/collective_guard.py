"""Collective error handling: all ranks continue or all raise.

An error of one rank is every rank's; what ranks must have in common is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suite.core.errors import InvalidRequest, RankError

if TYPE_CHECKING:
    from suite.engine.engine import Engine

_BYTES = 6  # of a digest: a double holds it exactly


class Together:
    """All ranks go on, or none."""

    def __init__(self, engine: Engine) -> None:
        self.world, self.size, self.progress = engine.world, engine.grid.size, engine.transport.progress
        self.replica = engine.place.replica

    def largest(self, number: int) -> int:
        return number if self.size == 1 else int(self.world.all_reduce_scalar(float(number), "max", self.progress))

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Inside, an error of one rank is every rank's."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        worst = self.largest(0 if error is None else 2 * self.world.rank + 1 + isinstance(error, InvalidRequest))
        if error is not None:
            raise error
        if worst:
            kind = RankError if worst % 2 else InvalidRequest
            raise kind(f"{what}: rank {(worst - 1) // 2} cannot, and says why")

    def total(self, number: float) -> float:
        """The sum of a number per stage; replicas have the same."""
        local = number if self.replica == 0 else 0.0
        return number if self.size == 1 else self.world.all_reduce_scalar(local, "sum", self.progress)

    def alike(self, own: bytes | None) -> bool:
        """Whether all ranks that give something give the same; every rank calls it."""
        if self.size == 1:
            return True
        code = 0 if own is None else 1 + int.from_bytes(hashlib.blake2b(own, digest_size=_BYTES).digest(), "big")
        most = self.world.all_reduce_scalar(float(code), "max", self.progress)
        negated = 2.0 ** (8 * _BYTES + 1) - code if own is not None else 0.0
        least = 2.0 ** (8 * _BYTES + 1) - self.world.all_reduce_scalar(negated, "max", self.progress)
        return most in (0.0, least)
