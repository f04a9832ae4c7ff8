"""Exact rank test of scores over seeds, with ties."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from suite.stats.rank_test import RankTestOutcome, rank_test


def count_assignments(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """U and the two-sided p-value over every assignment of the scores to two systems."""

    def wins(chosen: Sequence[float], rest: Sequence[float]) -> float:
        return sum((a > b) + (a == b) / 2 for a in chosen for b in rest)

    scores = [*ours, *theirs]
    u = []
    for chosen in itertools.combinations(range(len(scores)), len(ours)):
        rest = [scores[i] for i in range(len(scores)) if i not in chosen]
        u.append(wins([scores[i] for i in chosen], rest))
    observed = wins(ours, theirs)
    tails = sum(value <= observed for value in u), sum(value >= observed for value in u)
    return observed, min(1.0, 2 * min(tails) / len(u))


def test_p_counts_every_assignment() -> None:
    generator = random.Random(7)
    for n, m in ((2, 2), (3, 5), (5, 5), (4, 6)):
        for _ in range(6):
            ours, theirs = ([float(generator.randint(60, 66)) for _ in range(count)] for count in (n, m))
            test = rank_test(ours, theirs)
            assert (test.u, test.p) == pytest.approx(count_assignments(ours, theirs), abs=1e-12)


def test_five_seeds_that_all_win_are_better() -> None:
    high, low = [70.1, 70.4, 69.9, 71.0, 70.2], [66.0, 69.0, 68.1, 67.7, 68.8]
    test, reverse = rank_test(high, low), rank_test(low, high)
    assert (test.ours, test.theirs, test.n) == (70.2, 68.1, (5, 5))
    assert test.difference == pytest.approx(2.1)
    assert test.p == reverse.p == pytest.approx(2 / 252)
    assert (test.decision, reverse.decision) == (RankTestOutcome.BETTER, RankTestOutcome.WORSE)
    assert test.sentence() == test.sentence(like=True)
    assert "0.0079" in test.sentence()


def test_two_seeds_decide_nothing() -> None:
    test = rank_test([90.0, 91.0], [10.0, 11.0])
    assert test.p == test.min_p == pytest.approx(1 / 3)
    assert test.decision is RankTestOutcome.UNDECIDED
    assert "0.33" in test.sentence()


def test_undecided_is_no_proof_of_a_match() -> None:
    near = rank_test([70.0, 71.0, 72.0, 73.0], [70.5, 71.1, 71.9, 72.8])
    assert near.sentence(like=True).startswith(f"{near.sentence()}; the medians are within 1 point")
    far = rank_test([70.0, 71.0, 72.0, 73.0], [68.5, 69.0, 70.5, 72.8])
    assert far.decision is RankTestOutcome.UNDECIDED
    assert "more than 1 point apart" in far.sentence(like=True)


def test_missing_scores_are_undecided() -> None:
    assert rank_test([50.0] * 5, [50.0] * 5).p == 1.0
    assert rank_test([1.0, math.nan, 3.0], [2.0]).n == (2, 1)
    for ours, theirs in (([], [1.0]), ([math.nan], [1.0])):
        test = rank_test(ours, theirs)
        assert math.isnan(test.p)
        assert test.decision is RankTestOutcome.UNDECIDED
        assert "p nan" not in test.sentence(like=True)
