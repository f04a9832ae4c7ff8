"""Stragglers and per-op jitter of an emulated or simulated rank.

A factor depends only on the seed, the rank and the op. It is equal in every run and in any order of calls, so a
simulation can use the factors of an emulation. Jitter has mean 1: it adds no time on average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Op

_WORD = 2**64 - 1


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
        numbers = (self.seed, rank, op.stage, ord(op.kind.value), op.index)
        share = _share(*numbers, 0)
        if self.jitter == "uniform":
            return factor * (1 + self.spread * (2 * share - 1))
        normal = math.sqrt(-2 * math.log(share)) * math.cos(2 * math.pi * _share(*numbers, 1))  # Box and Muller
        return factor * math.exp(self.spread * (normal - self.spread / 2))


def _share(*numbers: int) -> float:
    """Uniform hash of the numbers in the open interval (0, 1). SplitMix64 mixes in each one (Steele et al., 2014)."""
    state = 0
    for seconds in numbers:
        state = (state ^ seconds) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return ((state >> 11) + 0.5) / 2**53
