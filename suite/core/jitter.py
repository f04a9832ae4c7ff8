"""Stragglers and per-op jitter of an emulated or simulated rank.

A factor depends only on the seed, the rank and the op. It is equal in every run and in any order of calls, so a
simulation can use the factors of an emulation. Jitter has mean 1: it adds no time on average.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Op


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Factor on the duration of an op, as a function of rank and op.

    Attributes:
        jitter: Lognormal (`spread` is the standard deviation of the logarithm) or uniform (from 1 - spread to 1 +
            spread).
        stragglers: Factor on all ops of a rank, by rank.
    """

    seed: int = 0
    jitter: Literal["lognormal", "uniform"] = "lognormal"
    spread: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)

    def check(self, grid: Grid) -> None:
        """Raises InvalidRequest for uniform jitter of 1 or more, and for a straggler outside the ranks of `grid`."""
        if self.jitter == "uniform" and self.spread >= 1:
            raise InvalidRequest("jitter.spread", self.spread, "below 1 for uniform jitter", "jitter.spread=0.1")
        if outside := next((rank for rank in self.stragglers if rank not in range(grid.size)), None):
            legal = {grid.size - 1: self.stragglers[outside]}
            rule = f"ranks of the grid {grid}, from 0 to {grid.size - 1}"
            raise InvalidRequest("stragglers", dict(self.stragglers), rule, f"stragglers={legal}")

    @property
    def nothing(self) -> bool:
        """Whether every factor is 1."""
        return not self.spread and not self.stragglers

    def __call__(self, rank: int, op: Op) -> float:
        factor = self.stragglers.get(rank, 1.0)
        if not self.spread:
            return factor
        drawn = random.Random(f"{self.seed} {rank} {op}")
        if self.jitter == "uniform":
            return factor * drawn.uniform(1 - self.spread, 1 + self.spread)
        return factor * drawn.lognormvariate(-self.spread * self.spread / 2, self.spread)
