"""Interleaved rounds of old and new code: a change, no change, or inconclusive.

Two views of the same turns, and exact tests of both. Each turn's two medians side by side: what both suffer cancels.
And the quickest quarter of all turns on either side: where neighbours take cores away for minutes, what is left of a
machine in its quiet moments is what tells two codes apart. Neighbours only ever slow a run down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from suite.stats.inference import RESAMPLES

_ENUMERATED = 12  # turns whose every exchange of old and new is gone through; beyond, so many are drawn:
_DRAWN = 10_000
_BOUNDS = (0.025, 0.975)
FEWEST = 6  # turns before anything is cleared
LOOKS = 2  # at the planned number of turns, and at twice as many


@dataclass(frozen=True, slots=True)
class RoundsResult:
    """ratio: new over old by the clearer view, with its interval; p: the chance that labels dealt out at random in each
    turn look as bad for new, for both views together; quiet: whether the view is that of the quickest quarter; most:
    how much worse new may be by either view."""

    ratio: float
    low: float
    high: float
    p: float
    turns: int
    quiet: bool
    most: float

    def worse(self, better: str) -> float:
        return self.ratio if better == "lower" else 1 / self.ratio

    def sure(self, better: str) -> bool:
        return self.low > 1 if better == "lower" else self.high < 1


def turned(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], better: str, *, seed: int = 0
) -> RoundsResult:
    """Of the samples of each turn, all above zero."""
    sign = 1.0 if better == "lower" else -1.0
    a, b = ([sign * np.log(np.asarray(samples, float)) for samples in side] for side in (old, new))
    middles = np.array([[np.median(values) for values in side] for side in (a, b)])
    floors = np.array([[np.quantile(values, 0.25) for values in side] for side in (a, b)])
    count = middles.shape[1]
    generator = np.random.default_rng(seed)
    picked = generator.integers(0, count, (RESAMPLES, count))
    views = []
    apart = middles[1] - middles[0]
    differing = apart[apart != 0]
    plain = len(np.unique(np.abs(differing))) == len(differing) <= 50
    p = (
        float(stats.wilcoxon(differing, alternative="greater", method="exact" if plain else "approx").pvalue)
        if len(differing)
        else 1.0
    )
    drawn = np.quantile(np.median(apart[picked], axis=1), _BOUNDS)
    views.append((p, walsh(apart), *drawn, False))
    shift = lowest(floors[1]) - lowest(floors[0])
    swaps = _swaps(count, generator)
    dealt = lowest(np.where(swaps, floors[0], floors[1])) - lowest(np.where(swaps, floors[1], floors[0]))
    drawn = np.quantile(lowest(floors[1][picked]) - lowest(floors[0][picked]), _BOUNDS)
    views.append((float(np.mean(dealt >= shift - 1e-12)), float(shift), *drawn, True))
    p, size, low, high, quiet = min(views, key=lambda view: view[0])
    bounds = sorted(math.exp(sign * bound) for bound in (low, high))
    most = math.exp(max(view[3] for view in views))
    return RoundsResult(math.exp(sign * size), bounds[0], bounds[1], min(1.0, 2 * p), count, quiet, most)


def _swaps(count: int, generator: np.random.Generator) -> Any:
    """Which turns have old and new exchanged, one row for each way; the first row exchanges none."""
    if count <= _ENUMERATED:
        return (np.arange(2**count)[:, None] >> np.arange(count)) % 2 == 1
    drawn = generator.integers(0, 2, (_DRAWN, count)) == 1
    drawn[0] = False
    return drawn


def lowest(values: Any) -> Any:
    """The mean of the lowest quarter of the last axis."""
    values = np.asarray(values)
    return np.sort(values, axis=-1)[..., : math.ceil(values.shape[-1] / 4)].mean(axis=-1)


def walsh(values: Any) -> float:
    """The Hodges-Lehmann middle: the median of the means of all pairs."""
    upper = np.triu_indices(len(values))
    return float(np.median((np.add.outer(values, values) / 2)[upper]))


def cleared(found: RoundsResult, threshold: float) -> bool:
    """Whether both views rule out a change as large as the threshold. To stop for that raises no alarm."""
    return found.turns >= FEWEST and found.most < 1 + threshold


def planned(family: int, level: float, wanted: int) -> int:
    """Turns before the first look: so many that the rarest order passes Holm's level, both views' and both looks'
    share of it, with one to spare."""
    return max(wanted, math.ceil(math.log2(2 * LOOKS * family / level)) + 1)
