"""Two sets of repeats: what is large, sure and of practical size is a change, and nothing else is."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from suite.stats.inference import (
    ChangeVerdict,
    Effect,
    delta,
    difference_interval,
    directed,
    effect,
    holm,
    mean_interval,
    spread,
    verdict,
)

STEADY = [[1.0 + 0.001 * turn + 0.002 * batch for batch in range(4)] for turn in range(10)]


def times(values: list[list[float]], factor: float) -> list[list[float]]:
    return [[value * factor for value in samples] for samples in values]


def judged(a: list[list[float]], b: list[list[float]], better: str = "lower") -> ChangeVerdict:
    found = effect(a, b)
    return verdict(found, found.p, better, threshold=0.05)


@pytest.mark.parametrize(
    ("factor", "better", "expected"),
    [
        (1.10, "lower", ChangeVerdict.WORSE),
        (0.90, "lower", ChangeVerdict.BETTER),
        (0.90, "higher", ChangeVerdict.WORSE),
        (1.10, "higher", ChangeVerdict.BETTER),
        (1.10, "", ChangeVerdict.CHANGED),
        (1.03, "lower", ChangeVerdict.SAME),  # sure, and too small to matter
        (1.00, "lower", ChangeVerdict.SAME),
    ],
)
def test_size_and_direction_decide(factor: float, better: str, expected: ChangeVerdict) -> None:
    assert judged(STEADY, times(STEADY, factor), better) is expected


def test_what_is_noisy_is_undecided() -> None:
    random = np.random.default_rng(0)
    a, b = (np.exp(random.normal(0, 0.5, (10, 4))).tolist() for _ in range(2))
    assert judged(a, b) is ChangeVerdict.UNDECIDED


@pytest.mark.parametrize("few", [1, 2, 3])
def test_few_repeats_decide_nothing(few: int) -> None:
    found = effect(STEADY[:few], times(STEADY[:few], 2.0))
    assert found.p >= found.least > 0.01
    assert verdict(found, found.p, "lower", threshold=0.05) is ChangeVerdict.UNDECIDED


def test_batches_of_one_repeat_are_no_evidence_of_their_own() -> None:
    """A hundred batches in each of ten repeats, all alike within: without blocks nearly all would be changes."""
    random, verdicts = np.random.default_rng(0), Counter[ChangeVerdict]()
    for _ in range(60):
        a, b = (np.exp(random.normal(0, 0.08, (10, 1)) + random.normal(0, 0.002, (10, 100))).tolist() for _ in "ab")
        verdicts[judged(a, b)] += 1
    assert verdicts[ChangeVerdict.WORSE] + verdicts[ChangeVerdict.BETTER] <= 1


def test_delta_counts_pairs() -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(0, 5, 7), random.integers(0, 5, 6)
    assert delta(a, b) == pytest.approx(np.mean([np.sign(y - x) for x in a for y in b]))
    assert delta([1, 2], [3, 4]) == 1.0


def test_holm_is_no_looser_than_its_order_allows() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert max(holm([0.9, 0.8])) == 1.0


def test_the_interval_covers_the_ratio() -> None:
    """99 % are asked for; the percentile interval of ten medians keeps nine in ten at least."""
    random, inside = np.random.default_rng(0), 0
    for seed in range(60):
        a, b = (np.exp(random.normal(0, 0.05, (10, 1))).tolist() for _ in "ab")
        found = effect(a, times(b, 1.2), seed=seed)
        inside += found.low <= 1.2 <= found.high
    assert inside >= 55


def test_spread_ignores_an_outlier() -> None:
    assert spread([1.0, 1.01, 0.99, 1.0, 50.0]) < 0.02
    assert directed(2.0, "lower") is ChangeVerdict.WORSE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ChangeVerdict.WORSE),
        ({"low": 0.99}, ChangeVerdict.UNDECIDED),  # the interval holds "equal"
        ({"ratio": 1.04}, ChangeVerdict.UNDECIDED),  # too small to matter, and not sure to be
        ({"delta": 0.4}, ChangeVerdict.UNDECIDED),  # a medium effect
        ({"p": 0.02}, ChangeVerdict.UNDECIDED),
        ({"low": 0.96, "high": 1.04, "ratio": 1.0}, ChangeVerdict.SAME),
        ({"low": 0.94, "high": 1.04, "ratio": 1.0}, ChangeVerdict.UNDECIDED),
        ({"low": 1.0, "high": 1.0, "ratio": 1.0, "repeats": (1, 1)}, ChangeVerdict.UNDECIDED),
    ],
)
def test_a_change_wants_all_four(changes: dict[str, Any], expected: ChangeVerdict) -> None:
    usual = Effect(ratio=1.1, low=1.06, high=1.2, delta=0.9, p=0.001, least=1e-5, repeats=(10, 10))
    found = dataclasses.replace(usual, **changes)
    assert verdict(found, found.p, "lower", threshold=0.05) is expected


def test_intervals_of_means_are_those_of_the_tables() -> None:
    """Student's t is 4.303 at two degrees of freedom and 2.776 at four, two-sided at 5 percent."""
    low, high = mean_interval([9.0, 10.0, 11.0])
    assert (low, high) == pytest.approx((10 - 4.303 / 3**0.5, 10 + 4.303 / 3**0.5), rel=1e-4)
    low, high = difference_interval([9.0, 10.0, 11.0], [7.0, 8.0, 9.0])
    assert (low, high) == pytest.approx((2 - 2.776 * (2 / 3) ** 0.5, 2 + 2.776 * (2 / 3) ** 0.5), abs=1e-3)
    assert mean_interval([1.0]) == (-math.inf, math.inf)
    assert difference_interval([1.0], [1.0, 2.0]) == (-math.inf, math.inf)
    assert difference_interval([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0)
