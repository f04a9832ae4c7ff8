"""Effect sizes, rank tests and bootstrapped intervals over repeats of a measurement.

Repeats are resampled and ranked, each by its median: batches of one repeat share its minute, its processes and their
memory, and are no more evidence than one. A verdict wants all four: the exact rank test passes Holm's level, the
interval leaves out "equal", the ratio is beyond the threshold, and Cliff's delta is large. A quantity is held
against a limit by its interval alone (`within`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from suite.core.record import Record

LARGE = 0.474  # of Cliff's delta, after Romano and others (2006)
LEVEL = 0.01  # of a family of tests: the chance that any of them is a false alarm
RESAMPLES = 4000
FEWEST = 4  # repeats a side: of 3 and 3 no order is rarer than one in ten
ROUNDING = 1e-9  # relative: two sums of one set of numbers in another order


class ChangeVerdict(StrEnum):
    """Outcome of one metric. CHANGED: another value of a metric without a better direction."""

    BETTER = "better"
    WORSE = "worse"
    CHANGED = "changed"
    SAME = "no change"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Effect:
    """How B differs from A.

    Attributes:
        ratio: Of medians over repeats, with its interval.
        delta: 1 where every sample of B is above every one of A.
        p: two-sided.
        least: The smallest p that as many repeats can have.
    """

    ratio: float
    low: float
    high: float
    delta: float
    p: float
    least: float
    repeats: tuple[int, int]


def medians(repeats: Sequence[Sequence[float]]) -> list[float]:
    return [float(np.median(samples)) for samples in repeats]


def rounds(record: Record, values: Sequence[float]) -> list[list[float]]:
    """The samples of one record by its rounds (`measure.rounds`), in which an experiment's systems run in turn. One
    repeat where the record does not say how many rounds there were, or the samples do not divide evenly."""
    plan: Any = record.config.get("measure", {})
    count = plan.get("rounds") if isinstance(plan, dict) else None
    if type(count) is not int or not 0 < count <= len(values) or len(values) % count:
        return [list(values)]
    size = len(values) // count
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


def resampled(values: Any, generator: np.random.Generator) -> Any:
    """The medians of RESAMPLES draws with replacement from `values`."""
    return np.median(values[generator.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)


def interval(
    repeats: Sequence[Sequence[float]],
    statistic: Callable[[Sequence[Any]], Any],
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """The bootstrapped interval of `statistic`, a function of the medians of several quantities.

    Args:
        repeats: for each quantity one number per repeat; a single number is exact and is not resampled.
        statistic: takes the resampled medians, an array per quantity, and returns an array of its values.
    """
    generator = np.random.default_rng(seed)
    drawn = [
        resampled(np.asarray(values, float), generator) if len(values) > 1 else np.full(RESAMPLES, float(values[0]))
        for values in repeats
    ]
    with np.errstate(all="ignore"):  # a record from elsewhere may hold any number
        low, high = np.quantile(statistic(drawn), [level / 2, 1 - level / 2])
    return float(low), float(high)


def within(low: float, high: float, limit: float) -> bool | None:
    """Whether a quantity with this interval is at most `limit`; None where the interval spans the limit."""
    if high <= limit:
        return True
    return False if low > limit else None


def mean_interval(values: Sequence[float], *, level: float = 0.05) -> tuple[float, float]:
    """Student's interval of the mean of repeats; without ends where one repeat alone is known."""
    return _around(float(np.mean(values)), _variance_of_mean(values), len(values) - 1, level)


def difference_interval(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.05) -> tuple[float, float]:
    """Welch's interval of the mean of `ours` minus the mean of `theirs`, with unequal variances."""
    middle = float(np.mean(ours) - np.mean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return -math.inf, math.inf
    parts = [(_variance_of_mean(values), len(values) - 1) for values in (ours, theirs)]
    total = sum(part for part, _ in parts)
    freedom = total**2 / sum(part**2 / degrees for part, degrees in parts) if total else 1.0
    return _around(middle, total, freedom, level)


def _variance_of_mean(values: Sequence[float]) -> float:
    return float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else math.inf


def _around(middle: float, variance: float, freedom: float, level: float) -> tuple[float, float]:
    if not math.isfinite(variance):
        return -math.inf, math.inf
    reach = float(stats.t.ppf(1 - level / 2, freedom)) * math.sqrt(variance)
    return middle - reach, middle + reach


def effect(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, level: float = LEVEL, seed: int = 0
) -> Effect:
    """Of repeats with their samples, all above zero."""
    ours, theirs = np.array(medians(a)), np.array(medians(b))
    generator = np.random.default_rng(seed)
    ratios = resampled(theirs, generator) / resampled(ours, generator)
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
    adjusted, highest = [0.0] * len(p), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - place) * p[index]))
        adjusted[index] = highest
    return adjusted


def verdict(found: Effect, adjusted: float, better: str, *, threshold: float, level: float = LEVEL) -> ChangeVerdict:
    """threshold: the smallest ratio that matters, less one, either way round."""
    limit = math.log1p(threshold)
    beyond = abs(math.log(found.ratio)) >= limit
    apart = found.low > 1 or found.high < 1
    if beyond and apart and adjusted < level and abs(found.delta) >= LARGE:
        return directed(found.ratio, better)
    within = math.log(found.low) >= -limit and math.log(found.high) <= limit
    return ChangeVerdict.SAME if within and min(found.repeats) > 1 else ChangeVerdict.UNDECIDED


def directed(ratio: float, better: str) -> ChangeVerdict:
    if better not in ("lower", "higher"):
        return ChangeVerdict.CHANGED
    return ChangeVerdict.WORSE if (ratio > 1) == (better == "lower") else ChangeVerdict.BETTER


def spread(repeats: Sequence[float]) -> float:
    """Relative: 1.48 times the median distance of logarithms to their median, a deviation that outliers do not move."""
    logs = np.log(np.asarray(repeats, float))
    return float(1.4826 * np.median(np.abs(logs - np.median(logs))))
