"""Comparisons of PipeOptim's printed numbers that suite.papers.common.printed does not cover."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from suite.papers.common.answer import Cases, Papers, Question


def mean(question: Question, papers: Papers, *, of: Sequence[str]) -> tuple[Cases, str]:
    """The plain mean of printed values."""
    return [[sum(_least(papers, name) for name in of) / len(of)]], f"mean of {len(of)} printed values"


def cases(question: Question, papers: Papers, *, of: Sequence[Sequence[str]]) -> tuple[Cases, str]:
    """Cases of printed values, of which some are lower bounds and stand with their lower end."""
    return [[_least(papers, name) for name in names] for names in of], f"printed values in {len(of)} cases"


def ratio(question: Question, papers: Papers, *, of: str, over: str) -> tuple[Cases, str]:
    """A printed value, or the lower end of a printed bound, over another."""
    return [[_least(papers, of) / _least(papers, over)]], "ratio of printed values"


def product(question: Question, papers: Papers, *, of: str, by: str) -> tuple[Cases, str]:
    """A printed value times another; of a printed bound its lower end."""
    return [[_least(papers, of) * _least(papers, by)]], "product of printed values"


def hours(question: Question, papers: Papers, *, epoch: str, epochs: int) -> tuple[Cases, str]:
    """A printed epoch time, in seconds, times a number of epochs."""
    return [[_least(papers, epoch) * epochs / 3600]], f"{epochs} printed epochs"


def stated(question: Question, papers: Papers, *, beside: str, place: int) -> tuple[Cases, str]:
    """A number that the paper prints a second time: one of those that stand with another claim, counted from 0."""
    return [[Fraction(papers.printed(beside)[place])]], "the number as the text repeats it"


def images(question: Question, papers: Papers, *, classes: str, each: Sequence[str]) -> tuple[Cases, str]:
    """Images of a data set divided by the images of a class."""
    return [[_least(papers, classes) * _together(papers, each)]], "printed classes times printed images of a class"


def classes(question: Question, papers: Papers, *, images: str, each: Sequence[str]) -> tuple[Cases, str]:
    """Classes of a data set by its images."""
    return [[_least(papers, images) / _together(papers, each)]], "printed images over printed images of a class"


def rest(question: Question, papers: Papers, *, images: str, classes: str, less: str) -> tuple[Cases, str]:
    """Images of a class that are not in the other part."""
    remainder = _least(papers, images) / _least(papers, classes) - _least(papers, less)
    return [[remainder]], "printed images of a class less those of the other part"


def _together(papers: Papers, names: Sequence[str]) -> Fraction:
    return sum((_least(papers, name) for name in names), Fraction(0))


def _least(papers: Papers, name: str) -> Fraction:
    """A printed number as its decimals have it; of a printed bound the lower end."""
    ranged = isinstance(papers.claims[name].value, tuple) if name in papers.claims else False
    return Fraction(repr(papers.ends(name)[0] if ranged else papers.value(name)))
