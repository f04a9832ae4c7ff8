"""Answers from PipeOptim's printed numbers, some of which are lower bounds (see suite.claims.printed)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from suite.claims.answer import Cases, Papers, Question


def mean(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """Arithmetic mean of printed values."""
    return [[sum(_lower_end(papers, name) for name in of) / len(of)]], f"mean of {len(of)} printed values"


def cases(question: Question, papers: Papers, *, of: Sequence[Sequence[str]]) -> tuple[Cases, str]:
    """Cases of printed values; a printed bound counts with its lower end."""
    return [[_lower_end(papers, name) for name in names] for names in of], f"printed values in {len(of)} cases"


def ratio(question: Question, papers: Papers, *, of: str, over: str) -> tuple[Cases, str]:
    """Ratio of two printed values; a printed bound counts with its lower end."""
    return [[_lower_end(papers, of) / _lower_end(papers, over)]], "ratio of printed values"


def product(question: Question, papers: Papers, *, of: str, by: str) -> tuple[Cases, str]:
    """Product of two printed values; a printed bound counts with its lower end."""
    return [[_lower_end(papers, of) * _lower_end(papers, by)]], "product of printed values"


def hours(question: Question, papers: Papers, *, epoch: str, epochs: int) -> tuple[Cases, str]:
    """Hours of a number of epochs at the printed seconds per epoch."""
    return [[_lower_end(papers, epoch) * epochs / 3600]], f"{epochs} printed epochs"


def stated(question: Question, papers: Papers, *, beside: str, place: int) -> tuple[Cases, str]:
    """A number that the paper repeats in the passage of another claim; `place` counts from 0."""
    return [[Fraction(papers.printed(beside)[place])]], "the number as the text repeats it"


def images(question: Question, papers: Papers, *, classes: str, each: Sequence[str]) -> tuple[Cases, str]:
    """Images of a data set: classes times images per class."""
    return [[_lower_end(papers, classes) * _sum(papers, each)]], "printed classes times printed images per class"


def classes(question: Question, papers: Papers, *, images: str, each: Sequence[str]) -> tuple[Cases, str]:
    """Classes of a data set: its images over the images per class."""
    return [[_lower_end(papers, images) / _sum(papers, each)]], "printed images over printed images per class"


def rest(question: Question, papers: Papers, *, images: str, classes: str, less: str) -> tuple[Cases, str]:
    """Images per class outside the other subset of a data set."""
    remainder = _lower_end(papers, images) / _lower_end(papers, classes) - _lower_end(papers, less)
    return [[remainder]], "printed images per class less those of the other subset"


def _sum(papers: Papers, names: Sequence[str]) -> Fraction:
    return sum((_lower_end(papers, name) for name in names), Fraction(0))


def _lower_end(papers: Papers, name: str) -> Fraction:
    """A printed number as an exact decimal, or the lower end of a printed bound."""
    ranged = isinstance(papers.claims[name].value, tuple) if name in papers.claims else False
    return Fraction(repr(papers.ends(name)[0] if ranged else papers.value(name)))
