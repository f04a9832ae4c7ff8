"""Printed numbers of a paper against each other: differences, ratios, products and orders of its own cells.

Such an answer says whether a paper agrees with itself, and nothing about any code. Each function reads the values of
other claims, never the value of the claim that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from suite.core.errors import InvalidRequest
from suite.papers.common.answer import Cases, Papers, Question

STATISTICS = ("average", "maximum", "minimum", "each")


def values(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """One case: the printed values of other claims, for an order or an equality."""
    return [[papers.value(name) for name in of]], "printed values, in the order of the terms"


def cases(question: Question, papers: Papers, *, of: Sequence[Sequence[str]]) -> tuple[Cases, str]:
    """Several cases of printed values, each in the order of the claim's terms."""
    return [[papers.value(name) for name in names] for names in of], f"printed values in {len(of)} cases"


def difference(
    question: Question, papers: Papers, *, of: Sequence[str], less: Sequence[str], statistic: str = "each"
) -> tuple[Cases, str]:
    """The printed value of each claim of `of` minus the value of its partner in `less`, or a statistic of all
    differences.
    """
    differences = [papers.exact(first) - papers.exact(second) for first, second in _pairs(of, less)]
    return _summary(differences, statistic), f"{statistic} of {len(differences)} differences of printed values"


def ratio(
    question: Question, papers: Papers, *, of: Sequence[str], over: Sequence[str], statistic: str = "each"
) -> tuple[Cases, str]:
    """The printed value of each claim of `of` divided by the value of its partner in `over`, or a statistic of all
    ratios.
    """
    ratios = [papers.exact(first) / papers.exact(second) for first, second in _pairs(of, over)]
    return _summary(ratios, statistic), f"{statistic} of {len(ratios)} ratios of printed values"


def product(question: Question, papers: Papers, *, of: Sequence[str], times: float = 1) -> tuple[Cases, str]:
    """The product of printed values, times a factor such as hours per second."""
    return [[prod((papers.exact(name) for name in of), start=Fraction(str(times)))]], "product of printed values"


def total(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """The sum of printed values."""
    return [[sum((papers.exact(name) for name in of), Fraction(0))]], f"sum of {len(of)} printed values"


def _pairs(first: Sequence[str], second: Sequence[str]) -> list[tuple[str, str]]:
    if len(first) != len(second) or not first:
        raise InvalidRequest(f"{len(first)} claims with {len(second)} partners", rule="as many of both, at least one")
    return list(zip(first, second, strict=True))


def _summary(found: Sequence[Fraction], statistic: str) -> Cases:
    if statistic not in STATISTICS:
        raise InvalidRequest("statistic", statistic, f"one of {', '.join(STATISTICS)}", "each")
    if statistic == "each":
        return [[value] for value in found]
    return [[{"average": sum(found) / len(found), "maximum": max(found), "minimum": min(found)}[statistic]]]
