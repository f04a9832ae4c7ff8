"""Test of interleaved rounds of old and new code.

The result combines two exact tests of the same rounds. The paired test compares the medians within each round, so that
drift which both suffer cancels. The quiet test compares the fastest quarter of the rounds of each side: other
processes take cores away for minutes at a time and only ever slow a run down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from suite.stats.inference import RESAMPLES

_PERMUTATIONS = 9999  # exact up to 13 rounds, which have 2 ** 13 exchanges
_QUANTILES = (0.025, 0.975)
MIN_ROUNDS = 6  # before a change can be ruled out
LOOKS = 2  # interim analyses: after the planned number of rounds, and after twice as many


@dataclass(frozen=True, slots=True)
class InterleavedResult:
    """Result of interleaved rounds.

    Attributes:
        ratio: New divided by old, by the test with the smaller p-value.
        low: Lower end of the 95 % bootstrap interval of the ratio.
        high: Upper end of that interval.
        p: One-sided p-value that new is worse, adjusted for both tests.
        rounds: Number of rounds.
        quiet: Whether the ratio comes from the quiet test.
        max_worsening: Largest upper end of both intervals, as a ratio above 1 if new may be worse.
    """

    ratio: float
    low: float
    high: float
    p: float
    rounds: int
    quiet: bool
    max_worsening: float

    def worsening(self, better: str) -> float:
        """The ratio, above 1 if new is worse."""
        return self.ratio if better == "lower" else 1 / self.ratio

    def is_worse(self, better: str) -> bool:
        """Whether the whole interval is on the worse side."""
        return self.low > 1 if better == "lower" else self.high < 1


def interleaved_test(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], better: str, *, seed: int = 0
) -> InterleavedResult:
    """Test whether new code is worse than old code.

    Args:
        old: Samples of each round of old code, all above zero.
        new: Samples of the same rounds of new code.
        better: "lower" or "higher", the direction of the metric.
        seed: Seed of the bootstrap and of sampled permutations.
    """
    sign = 1.0 if better == "lower" else -1.0
    logs = [[sign * np.log(np.asarray(samples, float)) for samples in side] for side in (old, new)]
    old_medians, new_medians = (np.array([np.median(values) for values in side]) for side in logs)
    old_floors, new_floors = (np.array([np.quantile(values, 0.25) for values in side]) for side in logs)
    differences = new_medians - old_medians
    generator = np.random.default_rng(seed)
    resampled = generator.integers(0, len(differences), (RESAMPLES, len(differences)))
    paired = (
        _signed_rank_p(differences),
        hodges_lehmann(differences),
        *np.quantile(np.median(differences[resampled], axis=1), _QUANTILES),
        False,
    )
    quiet_test = stats.permutation_test(
        (new_floors, old_floors),
        _quiet_difference,
        permutation_type="samples",
        alternative="greater",
        n_resamples=_PERMUTATIONS,
        rng=generator,
    )
    quiet = (
        float(quiet_test.pvalue),
        float(quiet_test.statistic),
        *np.quantile(_quiet_difference(new_floors[resampled], old_floors[resampled]), _QUANTILES),
        True,
    )
    p, size, low, high, is_quiet = min(paired, quiet, key=lambda test: test[0])
    bounds = sorted(math.exp(sign * bound) for bound in (low, high))
    max_worsening = math.exp(max(paired[3], quiet[3]))
    return InterleavedResult(
        math.exp(sign * size), bounds[0], bounds[1], min(1.0, 2 * p), len(differences), is_quiet, max_worsening
    )


def _signed_rank_p(differences: Any) -> float:
    """One-sided p-value of Wilcoxon's signed-rank test; 1 if no round differs."""
    nonzero = differences[differences != 0]
    if not len(nonzero):
        return 1.0
    exact = len(np.unique(np.abs(nonzero))) == len(nonzero) <= 50
    return float(stats.wilcoxon(nonzero, alternative="greater", method="exact" if exact else "approx").pvalue)


def _quiet_difference(new: Any, old: Any, axis: int = -1) -> Any:
    return mean_of_lowest_quarter(new) - mean_of_lowest_quarter(old)


def mean_of_lowest_quarter(values: Any) -> Any:
    """Mean of the lowest quarter of the last axis."""
    values = np.asarray(values)
    return np.sort(values, axis=-1)[..., : math.ceil(values.shape[-1] / 4)].mean(axis=-1)


def hodges_lehmann(values: Any) -> float:
    """Hodges-Lehmann estimate of the location: median of the means of all pairs."""
    upper = np.triu_indices(len(values))
    return float(np.median((np.add.outer(values, values) / 2)[upper]))


def rules_out(result: InterleavedResult, threshold: float) -> bool:
    """Whether both tests exclude a worsening as large as the threshold. Stopping for this raises no false alarm."""
    return result.rounds >= MIN_ROUNDS and result.max_worsening < 1 + threshold


def planned_rounds(family: int, level: float, minimum: int) -> int:
    """Rounds before the first look.

    The rarest order of that many rounds passes Holm's level divided by both tests and all looks, with one to spare.

    Args:
        family: Number of candidates that are tested together.
        level: Familywise level.
        minimum: Smallest number of rounds.
    """
    return max(minimum, math.ceil(math.log2(2 * LOOKS * family / level)) + 1)
