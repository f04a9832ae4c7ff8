"""Effects, intervals and adjusted p-values."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from suite.regression.decide import ChangeRule, ChangeVerdict, decide_repeats
from suite.stats.inference import cliffs_delta, difference_interval, estimate_effect, holm, log_deviation, mean_interval


def test_batches_of_one_repeat_are_no_independent_evidence() -> None:
    """Ten repeats of a hundred similar batches each: if batches counted, nearly all would be changes."""
    random, verdicts = np.random.default_rng(0), Counter[ChangeVerdict]()
    for _ in range(60):
        a, b = (np.exp(random.normal(0, 0.08, (10, 1)) + random.normal(0, 0.002, (10, 100))).tolist() for _ in "ab")
        effect = estimate_effect(a, b)
        verdicts[decide_repeats(effect, effect.p, "lower", ChangeRule())] += 1
    assert verdicts[ChangeVerdict.WORSE] + verdicts[ChangeVerdict.BETTER] <= 1


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_few_repeats_cannot_reach_the_level(repeats: int) -> None:
    samples = [[1.0 + 0.001 * n] for n in range(repeats)]
    effect = estimate_effect(samples, [[2 * value for value in values] for values in samples])
    assert effect.p >= effect.min_p > 0.01


def test_cliffs_delta_counts_pairs() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 5, 7), random.integers(0, 5, 6)
    assert cliffs_delta(a, b) == pytest.approx(np.mean([np.sign(y - x) for x in a for y in b]))
    assert cliffs_delta([1, 2], [3, 4]) == 1.0


def test_holm_adjusts_in_order_of_p() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert max(holm([0.9, 0.8])) == 1.0


def test_log_deviation_ignores_an_outlier() -> None:
    assert log_deviation([1.0, 1.01, 0.99, 1.0, 50.0]) < 0.02


def test_intervals_of_means_match_t_tables() -> None:
    """Student's t is 4.303 at two degrees of freedom and 2.776 at four, two-sided at 5 %."""
    low, high = mean_interval([9.0, 10.0, 11.0])
    assert (low, high) == pytest.approx((10 - 4.303 / 3**0.5, 10 + 4.303 / 3**0.5), rel=1e-4)
    low, high = difference_interval([9.0, 10.0, 11.0], [7.0, 8.0, 9.0])
    assert (low, high) == pytest.approx((2 - 2.776 * (2 / 3) ** 0.5, 2 + 2.776 * (2 / 3) ** 0.5), abs=1e-3)
    assert mean_interval([1.0]) == (-math.inf, math.inf)
    assert difference_interval([1.0], [1.0, 2.0]) == (-math.inf, math.inf)
    assert difference_interval([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0)
