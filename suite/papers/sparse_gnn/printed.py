"""Comparisons of the paper's printed cells and formulas with each other."""

from __future__ import annotations

from collections.abc import Sequence

from suite.claims import trace
from suite.claims.answer import Cases, Papers, Question
from suite.core.expression import evaluate


def imbalance(question: Question, papers: Papers, *, maximum: str, average: str) -> tuple[Cases, str]:
    """Percent by which a maximum of Table 2 exceeds the average in the same row."""
    return [[100 * (papers.exact(maximum) / papers.exact(average) - 1)]], "from two printed cells"


def ratios(
    question: Question, papers: Papers, *, of: Sequence[Sequence[str]], over: Sequence[Sequence[str]]
) -> tuple[Cases, str]:
    """Ratios of printed values, one case per pair of lists.

    An empty name in `of` stands for 1. Names in an entry of `over`, joined by " * ", are multiplied.
    """
    cases = []
    for numerators, denominators in zip(of, over, strict=True):
        case = []
        for numerator, denominator in zip(numerators, denominators, strict=True):
            ratio = papers.value(numerator) if numerator else 1.0
            for name in denominator.split(" * "):
                ratio /= papers.value(name)
            case.append(ratio)
        cases.append(case)
    return cases, "ratios of printed values"


def products_in_total(question: Question, papers: Papers, *, total: str, one: str) -> tuple[Cases, str]:
    """A printed total cost over the printed cost of one product, at the points of the question.

    Symbols that the points lack have the values of the total's first point.
    """
    whole, single = (papers.claims[name] for name in (total, one))
    for name in (total, one):
        trace.read(f"claim.{name}")
    values = []
    for point in question.points:
        symbols = {**whole.points[0], **point}
        single_symbols = {name: value for name, value in symbols.items() if name in single.points[0]}
        values.append(evaluate(whole.expression, symbols) / evaluate(single.expression, single_symbols))
    return [values], f"printed cost of {total.rpartition('.')[2]} over that of {one.rpartition('.')[2]}"
