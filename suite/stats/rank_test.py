"""Rank test for the scores of two systems over seeds.

Seeds are few and accuracies over a small validation set tie. The p-value is therefore counted over all assignments of
the scores (Mann and Whitney 1947), or over ASSIGNMENTS random ones for more than 8 and 8 seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

LEVEL = 0.05  # a p-value below this level decides
NEAR = 1.0  # percentage points, or BLEU points, within which two systems are called near
ASSIGNMENTS = math.comb(16, 8)


class RankTestOutcome(StrEnum):
    """Whether our scores are better than the other system's."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RankTest:
    """Comparison of the scores of two systems; a higher score is better.

    Attributes:
        ours: Median of our scores.
        theirs: Median of the other system's scores.
        n: Number of seeds of each.
        u: Number of pairs that ours wins; a tie counts one half. nan for a single seed, which decides nothing.
        p: Two-sided p-value.
        min_p: Smallest p-value that this number of seeds can reach.
    """

    ours: float
    theirs: float
    n: tuple[int, int]
    u: float
    p: float
    min_p: float

    @property
    def difference(self) -> float:
        """Our median minus the other system's."""
        return self.ours - self.theirs

    @property
    def decision(self) -> RankTestOutcome:
        """The outcome at LEVEL."""
        if not self.p < LEVEL:
            return RankTestOutcome.UNDECIDED
        return RankTestOutcome.BETTER if 2 * self.u > self.n[0] * self.n[1] else RankTestOutcome.WORSE

    def sentence(self, *, like: bool = False) -> str:
        """The decision in words.

        Args:
            like: Whether ours is meant to match the other system, which an undecided test does not show.
        """
        if self.decision is not RankTestOutcome.UNDECIDED:
            return f"{self.decision}: p {self.p:.2g} is below {LEVEL:g}"
        if math.isnan(self.p):
            return f"{self.decision}: no scores to compare"
        if self.min_p >= LEVEL:
            reason = f"{self.n[0]} and {self.n[1]} seeds decide nothing, as p is {self.min_p:.2g} at least"
        else:
            reason = f"p {self.p:.2g} is not below {LEVEL:g}"
        if not like:
            return f"{self.decision}: {reason}"
        near = abs(self.difference) <= NEAR
        distance = f"within {NEAR:g} point, which proves no match" if near else f"more than {NEAR:g} point apart"
        return f"{self.decision}: {reason}; the medians are {distance}"


def rank_test(ours: Sequence[float], theirs: Sequence[float]) -> RankTest:
    """Test of the finite scores of two systems, one score per seed.

    The p-value is nan if a system has no score.
    """
    a, b = ([value for value in values if math.isfinite(value)] for values in (ours, theirs))
    our_median, their_median = (statistics.median(values) if values else math.nan for values in (a, b))
    u = p = min_p = math.nan
    if a and b:
        p, min_p = 1.0, min(1.0, 2 / math.comb(len(a) + len(b), len(a)))
    if min(len(a), len(b)) > 1:
        method = stats.PermutationMethod(n_resamples=ASSIGNMENTS, rng=np.random.default_rng(0))
        u, p = map(float, stats.mannwhitneyu(a, b, method=method))
    return RankTest(our_median, their_median, (len(a), len(b)), u, p, min_p)
