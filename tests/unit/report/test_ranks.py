"""Exact rank test, with ties."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from scipy import stats

from suite.stats.rank_test import MOST_SEEDS, RankTestOutcome, compared


def dealt(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """U and p by trying every way to deal the scores out, pair by pair."""

    def won(chosen: Sequence[float], rest: Sequence[float]) -> float:
        return sum((a > b) + (a == b) / 2 for a in chosen for b in rest)

    pool = [*ours, *theirs]
    every = []
    for places in itertools.combinations(range(len(pool)), len(ours)):
        every.append(won([pool[i] for i in places], [pool[i] for i in range(len(pool)) if i not in places]))
    seen = won(ours, theirs)
    low, high = sum(u <= seen for u in every), sum(u >= seen for u in every)
    return seen, min(1.0, 2 * min(low, high) / len(every))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 5), (5, 5), (4, 6)])
def test_with_ties_p_is_that_of_every_way_to_deal_the_scores_out(n: int, m: int) -> None:
    dice = random.Random(n * 10 + m)
    for _ in range(12):
        ours, theirs = ([float(dice.randint(60, 66)) for _ in range(count)] for count in (n, m))
        found = compared(ours, theirs)
        assert (found.u, found.p) == pytest.approx(dealt(ours, theirs), abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(2, 3), (5, 5), (8, 6), (10, 12)])
def test_without_ties_it_is_scipys_exact_test(n: int, m: int) -> None:
    dice = random.Random(n * 100 + m)
    for shift in (0.0, 0.4):
        ours, theirs = ([dice.random() + shift * side for _ in range(count)] for side, count in ((1, n), (0, m)))
        theirs_test = stats.mannwhitneyu(ours, theirs, method="exact")
        found = compared(ours, theirs)
        assert found.u == theirs_test.statistic
        assert found.p == pytest.approx(theirs_test.pvalue, abs=1e-12)


def test_five_seeds_that_all_win_are_better_and_the_other_way_round_worse() -> None:
    high, low = [70.1, 70.4, 69.9, 71.0, 70.2], [66.0, 69.0, 68.1, 67.7, 68.8]
    found, turned = compared(high, low), compared(low, high)
    assert (found.ours, found.theirs, found.n) == (70.2, 68.1, (5, 5))
    assert found.difference == pytest.approx(2.1)
    assert found.p == turned.p == pytest.approx(2 / 252)
    assert (found.decision, turned.decision) == (RankTestOutcome.BETTER, RankTestOutcome.WORSE)
    assert found.sentence() == found.sentence(like=True) == "better: p 0.0079 is below 0.05"
    assert turned.sentence().startswith("worse: ")


def test_two_seeds_decide_nothing_and_say_so() -> None:
    found = compared([90.0, 91.0], [10.0, 11.0])
    assert found.p == found.least == pytest.approx(1 / 3)
    assert found.decision is RankTestOutcome.UNDECIDED
    assert found.sentence() == "undecided: 2 and 2 seeds decide nothing, as p is 0.33 at least"


def test_near_and_undecided_proves_no_match() -> None:
    near = compared([70.0, 71.0, 72.0, 73.0], [70.5, 71.1, 71.9, 72.8])
    assert near.sentence() == "undecided: p 1 is not below 0.05"
    assert near.sentence(like=True).endswith("; the medians are within 1 point, which proves no match")
    far = compared([70.0, 71.0, 72.0, 73.0], [68.5, 69.0, 70.5, 72.8])
    assert far.decision is RankTestOutcome.UNDECIDED
    assert far.sentence(like=True).endswith("; the medians are more than 1 point apart")


def test_equal_scores_and_no_scores_decide_nothing() -> None:
    assert compared([50.0] * 5, [50.0] * 5).p == 1.0
    for ours, theirs in (([], [1.0]), ([math.nan], [1.0]), ([1.0] * MOST_SEEDS, [2.0])):
        found = compared(ours, theirs)
        assert math.isnan(found.p)
        assert found.decision is RankTestOutcome.UNDECIDED
        assert found.sentence(like=True) == "undecided: no scores to compare"


def test_a_score_that_is_no_number_is_no_seed() -> None:
    assert compared([1.0, math.nan, 3.0], [2.0]).n == (2, 1)
