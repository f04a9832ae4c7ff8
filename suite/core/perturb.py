"""Decides by how much a rank is slower than its cost model says: stragglers, and jitter from op to op.

A factor depends on the seed, the rank and the op alone. So it is the same in every run and in any order of asking, and
a simulation can be given the factors of an emulation. Jitter has mean 1: it moves time about and adds none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from suite.core.errors import Refused, UnknownName
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.values import number

JITTERS = ("lognormal", "uniform")
_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Called with a rank and an op: the factor on that op's seconds.

    jitter: lognormal (`spread` is the standard deviation of the logarithm) or uniform (from 1 - spread to 1 + spread)
    stragglers: factor by rank, on all its ops
    """

    seed: int = 0
    jitter: str = "lognormal"
    spread: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.jitter not in JITTERS:
            raise UnknownName("jitter.kind", str(self.jitter), JITTERS)
        most = 1.0 if self.jitter == "uniform" else math.inf
        if not (number(self.spread) and 0 <= self.spread < most):
            rule = "at least 0" + (" and below 1: no op takes negative time" if most == 1 else ", finite")
            raise Refused(f"jitter.spread={self.spread}", rule=rule, legal="jitter.spread=0.1")
        for rank, factor in self.stragglers.items():
            if not (number(factor) and 0 < factor < math.inf):
                raise Refused(
                    f"stragglers={{{rank}: {factor}}}",
                    rule="a finite factor above 0",
                    legal=f"stragglers={{{rank}: 2}}",
                )

    @classmethod
    def of(cls, config: Mapping[str, Any], grid: Grid, seed: int) -> Perturbation:
        """Of an executor's jitter and stragglers, whose keys may be text. Raises Refused for a rank not in `grid`."""
        for key, legal in (("jitter", "{kind: lognormal, spread: 0.1}"), ("stragglers", "{0: 1.5}")):
            if not isinstance(config.get(key) or {}, Mapping):
                raise Refused(f"{key}={config[key]}", rule="a group of keys, or null", legal=f"{key}={legal}")
        stragglers = {}
        for name, factor in (config.get("stragglers") or {}).items():
            rank = int(name) if str(name).isdecimal() else -1
            if not 0 <= rank < grid.size:
                raise Refused(
                    f"stragglers={{{name}: {factor}}} on a grid of {grid.size} ranks ({grid})",
                    rule=f"a rank from 0 to {grid.size - 1}",
                    legal=f"stragglers={{{grid.size - 1}: {factor}}}",
                )
            stragglers[rank] = factor
        jitter = config.get("jitter") or {}
        return cls(seed, jitter.get("kind", "lognormal"), jitter.get("spread", 0.0), stragglers)

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
    """Evenly from 0 to 1, neither of them, by these numbers: each is mixed in by SplitMix64 (Steele et al., 2014)."""
    state = 0
    for own in numbers:
        state = (state ^ own) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return ((state >> 11) + 0.5) / 2**53
