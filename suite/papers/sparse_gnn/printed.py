"""Comparisons of the paper's printed cells and formulas with each other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from suite.core.expression import evaluate
from suite.papers.common import trace
from suite.papers.common.answer import Cases, Papers, Question


def imbalance(question: Question, papers: Papers, *, maximum: str, average: str) -> tuple[Cases, str]:
    """Percent by which the largest of Table 2's cells exceeds the mean in the same row."""
    largest, mean = (Fraction(repr(papers.value(name))) for name in (maximum, average))
    return [[100 * (largest / mean - 1)]], "of two printed cells"


def per(
    question: Question, papers: Papers, *, of: Sequence[Sequence[str]], over: Sequence[Sequence[str]]
) -> tuple[Cases, str]:
    """A case of ratios for each pair of lists; an empty name in `of` stands for 1, several in `over` are multiplied."""
    cases = []
    for above, below in zip(of, over, strict=True):
        row = []
        for first, second in zip(above, below, strict=True):
            value = papers.value(first) if first else 1.0
            for name in second.split(" * "):
                value /= papers.value(name)
            row.append(value)
        cases.append(row)
    return cases, "ratios of printed values"


def times(question: Question, papers: Papers, *, total: str, one: str) -> tuple[Cases, str]:
    """How often a printed total contains the printed cost of one, at the points asked; other symbols as the row of the
    total has them first."""
    whole, single = (papers.claims[name] for name in (total, one))
    for name in (total, one):
        trace.read(f"claim.{name}")
    values = []
    for point in question.points:
        at = {**whole.points[0], **point}
        symbols = {name: value for name, value in at.items() if name in single.points[0]}
        values.append(evaluate(whole.expression, at) / evaluate(single.expression, symbols))
    return [values], f"the cost of {total.rpartition('.')[2]} over that of {one.rpartition('.')[2]}, both as printed"
