"""Exact rank test on the scores of two systems over seeds, which may be inconclusive.

Few seeds are the rule, and accuracies over a small validation set tie, so p comes from counting every way to deal the
ranks out, ties at their mean rank, and from no approximation (Mann and Whitney 1947).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

LEVEL = 0.05  # p below it decides
WITHIN = 1.0  # points of percent, or of BLEU, that two systems may differ by and still be called near
MOST_SEEDS = 40  # of both together: how many ways there are to deal ranks grows with their fourth power


class RankTestOutcome(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Ranked:
    """Two systems' scores, higher is better.

    Attributes:
        u: Pairs that ours wins, ties a half.
        p: two-sided, exact.
        least: The smallest p that as many seeds can have, in whatever order they come out.
    """

    ours: float  # medians
    theirs: float
    n: tuple[int, int]
    u: float
    p: float
    least: float

    @property
    def difference(self) -> float:
        return self.ours - self.theirs

    @property
    def decision(self) -> RankTestOutcome:
        if not self.p < LEVEL:
            return RankTestOutcome.UNDECIDED
        return RankTestOutcome.BETTER if 2 * self.u > self.n[0] * self.n[1] else RankTestOutcome.WORSE

    def sentence(self, *, like: bool = False) -> str:
        """The decision in words. like: whether ours is meant to match theirs, which no undecided test shows."""
        if self.decision is not RankTestOutcome.UNDECIDED:
            return f"{self.decision}: p {self.p:.2g} is below {LEVEL:g}"
        if math.isnan(self.p):
            return f"{self.decision}: no scores to compare"
        if self.least >= LEVEL:
            why = f"{self.n[0]} and {self.n[1]} seeds decide nothing, as p is {self.least:.2g} at least"
        else:
            why = f"p {self.p:.2g} is not below {LEVEL:g}"
        if not like:
            return f"{self.decision}: {why}"
        near = abs(self.difference) <= WITHIN
        sentence_text = (
            f"within {WITHIN:g} point, which proves no match" if near else f"more than {WITHIN:g} point apart"
        )
        return f"{self.decision}: {why}; the medians are {sentence_text}"


def compared(ours: Sequence[float], theirs: Sequence[float]) -> Ranked:
    """The finite scores of two systems, one per seed; nan where one has none or both have more than MOST_SEEDS."""
    a, b = ([value for value in values if math.isfinite(value)] for values in (ours, theirs))
    n = (len(a), len(b))
    first, second = (statistics.median(values) if values else math.nan for values in (a, b))
    if not (a and b) or sum(n) > MOST_SEEDS:
        return Ranked(first, second, n, math.nan, math.nan, math.nan)
    places = _doubled_ranks([*a, *b])
    rank_sum = sum(places[: len(a)])
    ways = _ways(places, len(a))
    every = math.comb(sum(n), len(a))
    tails = (sum(w for s, w in ways.items() if s <= rank_sum), sum(w for s, w in ways.items() if s >= rank_sum))
    u = rank_sum / 2 - len(a) * (len(a) + 1) / 2
    return Ranked(first, second, n, u, min(1.0, 2 * min(tails) / every), min(1.0, 2 / every))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, equal ones at the mean of theirs: whole numbers."""
    below = {value: sum(other < value for other in values) for value in values}
    count = Counter(values)
    return [2 * below[value] + count[value] + 1 for value in values]


def _ways(places: Sequence[int], chosen: int) -> dict[int, int]:
    """By sum, how many choices of so many places have it."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(chosen))]
    for place in places:
        for size in range(chosen, 0, -1):
            for total, count in ways[size - 1].items():
                ways[size][total + place] = ways[size].get(total + place, 0) + count
    return ways[chosen]
