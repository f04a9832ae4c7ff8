"""Decides when two sets of samples differ: by a large effect, of practical size, and not by chance.

What is resampled and ranked are repeats, each by its median: batches of one repeat share its minute, its processes and
their places in memory, and many of them are no more evidence than one. A verdict wants all four: the exact rank test
passes Holm's level, the interval leaves out "equal", the ratio is beyond the threshold, and Cliff's delta is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

LARGE = 0.474  # of Cliff's delta, after Romano and others (2006)
LEVEL = 0.01  # of a family of tests: the chance that any of them is a false alarm
RESAMPLES = 4000
ROUNDING = 1e-9  # relative: two sums of one set of numbers in another order


class Verdict(StrEnum):
    """What became of one metric. CHANGED: another value of what is neither better nor worse."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    SAME = "no change"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Effect:
    """How B differs from A. ratio: of medians over repeats, with its interval; delta: 1 where every sample of B is
    above every one of A; p: two-sided; least: the smallest p that as many repeats can have."""

    ratio: float
    low: float
    high: float
    delta: float
    p: float
    least: float
    repeats: tuple[int, int]


def medians(repeats: Sequence[Sequence[float]]) -> list[float]:
    return [float(np.median(samples)) for samples in repeats]


def effect(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, level: float = LEVEL, seed: int = 0
) -> Effect:
    """Of repeats with their samples, all above zero."""
    ours, theirs = np.array(medians(a)), np.array(medians(b))
    generator = np.random.default_rng(seed)

    def resampled(values: Any) -> Any:
        return np.median(values[generator.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)

    ratios = resampled(theirs) / resampled(ours)
    low, high = np.quantile(ratios, [level / 2, 1 - level / 2])
    tied = len(np.unique(np.concatenate([ours, theirs]))) < len(ours) + len(theirs)
    test = stats.mannwhitneyu(theirs, ours, method="asymptotic" if tied or len(ours) * len(theirs) > 2500 else "exact")
    least = min(1.0, 2 / math.comb(len(ours) + len(theirs), len(ours)))
    return Effect(
        float(np.median(theirs) / np.median(ours)),
        float(low),
        float(high),
        delta(np.concatenate([np.asarray(x, float) for x in a]), np.concatenate([np.asarray(x, float) for x in b])),
        max(float(test.pvalue), least),
        least,
        (len(ours), len(theirs)),
    )


def delta(a: Any, b: Any) -> float:
    """Cliff's: how much more often a sample of B is above one of A than below."""
    a, b = np.sort(np.asarray(a, float)), np.asarray(b, float)
    below = np.searchsorted(a, b, side="left").sum()
    above = len(a) * len(b) - np.searchsorted(a, b, side="right").sum()
    return float((below - above) / (len(a) * len(b)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p: below a level where the whole family may have one false alarm with that chance."""
    order = sorted(range(len(p)), key=lambda index: p[index])
    found, highest = [0.0] * len(p), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - place) * p[index]))
        found[index] = highest
    return found


def verdict(found: Effect, adjusted: float, better: str, *, threshold: float, level: float = LEVEL) -> Verdict:
    """threshold: the smallest ratio that matters, less one, either way round."""
    limit = math.log1p(threshold)
    beyond = abs(math.log(found.ratio)) >= limit
    apart = found.low > 1 or found.high < 1
    if beyond and apart and adjusted < level and abs(found.delta) >= LARGE:
        return directed(found.ratio, better)
    within = math.log(found.low) >= -limit and math.log(found.high) <= limit
    return Verdict.SAME if within and min(found.repeats) > 1 else Verdict.UNDECIDED


def directed(ratio: float, better: str) -> Verdict:
    if better not in ("lower", "higher"):
        return Verdict.CHANGED
    return Verdict.WORSE if (ratio > 1) == (better == "lower") else Verdict.BETTER


def spread(repeats: Sequence[float]) -> float:
    """Relative: 1.48 times the median distance of logarithms to their median, a deviation that outliers do not move."""
    logs = np.log(np.asarray(repeats, float))
    return float(1.4826 * np.median(np.abs(logs - np.median(logs))))


@dataclass(frozen=True, slots=True)
class Paired:
    """Old and new code in turns: the change as a ratio, its interval, and the chance of as much without any change."""

    ratio: float
    low: float
    high: float
    p: float  # one-sided: that new is worse
    pairs: int


def paired(old: Sequence[float], new: Sequence[float], better: str, *, level: float = LEVEL, seed: int = 0) -> Paired:
    """Of one median per turn. The test is the signed-rank one: what both of a pair suffer cancels, and how far out an
    outlier lies does not count."""
    logs = np.log(np.asarray(new, float)) - np.log(np.asarray(old, float))
    generator = np.random.default_rng(seed)
    drawn = np.median(logs[generator.integers(0, len(logs), (RESAMPLES, len(logs)))], axis=1)
    low, high = np.exp(np.quantile(drawn, [level / 2, 1 - level / 2]))
    kept = logs[logs != 0]
    if len(kept):
        towards = "greater" if better == "lower" else "less"
        plain = len(np.unique(np.abs(kept))) == len(kept) <= 50
        p = float(stats.wilcoxon(kept, alternative=towards, method="exact" if plain else "approx").pvalue)
    else:
        p = 1.0
    return Paired(float(np.exp(walsh(logs))), float(low), float(high), p, len(logs))


def walsh(values: Any) -> float:
    """The Hodges-Lehmann middle: the median of the means of all pairs."""
    upper = np.triu_indices(len(values))
    return float(np.median((np.add.outer(values, values) / 2)[upper]))


def hopeless(found: Paired, better: str, threshold: float, logs_spread: float) -> bool:
    """Whether turns so far already rule out a change as large as the threshold; to stop for that raises no alarm."""
    worse = math.log(found.ratio) if better == "lower" else -math.log(found.ratio)
    error = 1.2533 * logs_spread / math.sqrt(found.pairs)  # of a median
    return found.pairs >= 4 and worse + 2 * error < math.log1p(threshold)
