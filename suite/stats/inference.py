"""Effect sizes, rank tests and bootstrap intervals over repeats of a measurement.

The unit of resampling and ranking is the repeat, represented by its median. Batches of one repeat share a minute, its
processes and their memory, so they are no more evidence than one batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from suite.core.record import Record

LEVEL = 0.01  # familywise: the probability that any test of a family is a false alarm
ROUNDS_LEVEL = 0.05  # probability outside the interval of interleaved rounds
RESAMPLES = 4000
MIN_REPEATS = 4  # per side: with 3 and 3, no order of the ranks is rarer than one in ten
ROUNDING = 1e-9  # relative: two sums of the same numbers in another order


@dataclass(frozen=True, slots=True)
class Effect:
    """Difference of B from A over repeats.

    Attributes:
        ratio: Median over the repeats of B divided by the median of A.
        low: Lower end of the bootstrap interval of the ratio.
        high: Upper end of that interval.
        delta: Cliff's delta; 1 if every sample of B is above every sample of A.
        p: Two-sided p-value of the rank test; of interleaved rounds, the one-sided one that new code is worse.
        min_p: Smallest p-value that this number of repeats can reach.
        repeats: Number of repeats of A and of B.
    """

    ratio: float
    low: float
    high: float
    delta: float
    p: float
    min_p: float
    repeats: tuple[int, int]


def medians(repeats: Sequence[Sequence[float]]) -> list[float]:
    """Median of each repeat."""
    return [float(np.median(samples)) for samples in repeats]


def samples_by_round(record: Record, values: Sequence[float]) -> list[list[float]]:
    """Samples of one record, split by its interleaved rounds (`measure.rounds`).

    Returns one group if the record does not hold the number of rounds or the samples do not divide evenly.
    """
    plan: Any = record.config.get("measure", {})
    count = plan.get("rounds") if isinstance(plan, dict) else None
    if type(count) is not int or not 0 < count <= len(values) or len(values) % count:
        return [list(values)]
    size = len(values) // count
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


def bootstrap_interval(
    repeats: Sequence[Any], statistic: Callable[[Sequence[Any]], Any], *, level: float = LEVEL
) -> tuple[float, float]:
    """Percentile bootstrap interval of a function of the medians of several quantities.

    Args:
        repeats: One number per repeat for each quantity. A quantity with a single number is exact and not resampled.
        statistic: Takes the resampled medians, an array of shape `(resamples,)` per quantity, and returns such an
            array.
        level: Probability outside the interval.
    """
    generator = np.random.default_rng(0)
    resampled = [
        np.median(generator.choice(np.asarray(values, float), (RESAMPLES, len(values))), axis=1) for values in repeats
    ]
    with np.errstate(all="ignore"):  # a record may hold any number
        low, high = np.quantile(statistic(resampled), [level / 2, 1 - level / 2])
    return float(low), float(high)


def is_at_most(low: float, high: float, limit: float) -> bool | None:
    """Whether a quantity with the interval `[low, high]` is at most `limit`; None if the interval spans the limit."""
    if high <= limit:
        return True
    return False if low > limit else None


def mean_interval(values: Sequence[float], *, level: float = 0.05) -> tuple[float, float]:
    """Student's interval of a mean; infinite for a single value."""
    if len(values) < 2:
        return -math.inf, math.inf
    return _interval(stats.ttest_1samp, values, 0.0, level=level)


def difference_interval(ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.05) -> tuple[float, float]:
    """Welch's interval of the mean of `ours` minus the mean of `theirs`; infinite if a side has a single value."""
    if min(len(ours), len(theirs)) < 2:
        return -math.inf, math.inf
    return _interval(stats.ttest_ind, ours, theirs, level=level, equal_var=False)


def _interval(test: Callable[..., Any], *samples: Any, level: float, **options: Any) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal values have an interval of width 0, which is right
        low, high = test(*samples, **options).confidence_interval(1 - level)
    return float(low), float(high)


def estimate_effect(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, level: float = LEVEL) -> Effect:
    """Effect of B compared with A. Every sample is above zero.

    Args:
        a: Samples of each repeat of A.
        b: Samples of each repeat of B.
        level: Probability outside the interval of the ratio.
    """
    before, after = np.array(medians(a)), np.array(medians(b))
    low, high = bootstrap_interval([after, before], lambda resampled: resampled[0] / resampled[1], level=level)
    ties = len(np.unique([*before, *after])) < len(before) + len(after)
    method = "asymptotic" if ties or len(before) * len(after) > 2500 else "exact"
    min_p = min(1.0, 2 / math.comb(len(before) + len(after), len(before)))
    return Effect(
        float(np.median(after) / np.median(before)),
        low,
        high,
        cliffs_delta(np.concatenate(a), np.concatenate(b)),
        max(float(stats.mannwhitneyu(after, before, method=method).pvalue), min_p),
        min_p,
        (len(before), len(after)),
    )


def interleaved_effect(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], better: str) -> Effect:
    """Effect of new code in interleaved rounds, with the p-value of Wilcoxon's signed-rank test that new is worse.

    The test compares the medians within each round, so that drift which both codes suffer cancels.

    Args:
        old: Samples of each round of old code, all above zero.
        new: Samples of the same rounds of new code.
        better: "lower" or "higher", the direction of the metric.
    """
    changes = np.log(medians(new)) - np.log(medians(old))
    low, high = bootstrap_interval([changes], lambda resampled: resampled[0], level=ROUNDS_LEVEL)
    worse = changes if better == "lower" else -changes
    p = float(stats.wilcoxon(worse, alternative="greater").pvalue) if worse.any() else 1.0
    return Effect(
        math.exp(np.median(changes)),
        math.exp(low),
        math.exp(high),
        cliffs_delta(np.concatenate(old), np.concatenate(new)),
        p,
        2.0 ** -len(changes),
        (len(changes), len(changes)),
    )


def cliffs_delta(a: Any, b: Any) -> float:
    """Cliff's delta: share of the pairs in which B is above A, minus the share in which it is below."""
    pairs = len(a) * len(b)
    return float(2 * stats.mannwhitneyu(b, a, method="asymptotic").statistic - pairs) / pairs


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, which control the probability of any false alarm in the family."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * np.asarray(p, float)[order]))
    return adjusted.tolist()


def log_deviation(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms, estimated from their median absolute deviation: robust to outliers."""
    return float(stats.median_abs_deviation(np.log(np.asarray(values, float)), scale="normal"))
