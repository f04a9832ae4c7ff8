"""Answers from printed numbers alone: differences, ratios, products and orders of a paper's cells.

Such an answer tests whether a paper is consistent with itself and tests no code. Each function reads values of other
claims, never the value of its own claim."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from suite.claims.answer import Cases, Papers, Question
from suite.core.errors import InvalidRequest

STATISTICS = ("average", "maximum", "minimum", "each")


def values(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """Printed values of other claims as one case, for an order or an equality."""
    return [[papers.value(name) for name in of]], "printed values, in the order of the terms"


def cases(question: Question, papers: Papers, *, of: Sequence[Sequence[str]]) -> tuple[Cases, str]:
    """Printed values of other claims as several cases, each in the order of the claim's terms."""
    return [[papers.value(name) for name in names] for names in of], f"printed values in {len(of)} cases"


def difference(
    question: Question, papers: Papers, *, of: Sequence[str], less: Sequence[str], statistic: str = "each"
) -> tuple[Cases, str]:
    """Differences of printed values: each claim of `of` minus its partner in `less`, or a statistic of them."""
    differences = [papers.exact(first) - papers.exact(second) for first, second in _pairs(of, less)]
    return _summary(differences, statistic), f"{statistic} of {len(differences)} differences of printed values"


def ratio(
    question: Question, papers: Papers, *, of: Sequence[str], over: Sequence[str], statistic: str = "each"
) -> tuple[Cases, str]:
    """Ratios of printed values: each claim of `of` over its partner in `over`, or a statistic of them."""
    ratios = [papers.exact(first) / papers.exact(second) for first, second in _pairs(of, over)]
    return _summary(ratios, statistic), f"{statistic} of {len(ratios)} ratios of printed values"


def product(question: Question, papers: Papers, *, of: Sequence[str], times: float = 1) -> tuple[Cases, str]:
    """Product of printed values, times a factor such as hours per second."""
    return [[prod((papers.exact(name) for name in of), start=Fraction(str(times)))]], "product of printed values"


def total(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """Sum of printed values."""
    return [[sum((papers.exact(name) for name in of), Fraction(0))]], f"sum of {len(of)} printed values"


def _pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    if len(first) != len(second) or not first:
        raise InvalidRequest(f"{len(first)} claims with {len(second)} partners", rule="one partner for each claim")
    return list(zip(first, second, strict=True))


def _summary(numbers: Sequence[Fraction], statistic: str) -> Cases:
    if statistic not in STATISTICS:
        raise InvalidRequest("statistic", statistic, f"one of {', '.join(STATISTICS)}", "each")
    if statistic == "each":
        return [[number] for number in numbers]
    summaries = {"average": sum(numbers) / len(numbers), "maximum": max(numbers), "minimum": min(numbers)}
    return [[summaries[statistic]]]
