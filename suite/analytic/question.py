"""Decides what an answer to a published claim may know: its setting, its points, and what the papers say elsewhere.

Of another claim an answer may read the value (Table II's G_inter), of its own it cannot: Papers is handed over without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suite.core.claim import Claim
from suite.core.errors import Refused, UnknownName
from suite.workload import Transformer

Number = Any  # float, int or Fraction: a fraction reaches the record as the nearest float
Cases = Sequence[Sequence[Number]]


@dataclass(frozen=True, slots=True)
class Question:
    """A claim without its answer. points: symbol values of a formula; terms: what the values of one case are."""

    id: str
    setting: Mapping[str, Any]
    points: tuple[Mapping[str, float], ...] = ()
    terms: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> Question:
        return cls(claim.id, claim.setting, claim.points, claim.terms)


@dataclass(frozen=True, slots=True)
class Answer:
    """values: the cases one after the other; note: in one line, how they were derived."""

    unit: str
    values: tuple[float, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Papers:
    """What the papers say beside the claim that is asked, and the shapes of their models.

    settings: the published settings by group, of which machines and training are read; shapes: GPTs by name
    """

    claims: Mapping[str, Claim]
    settings: Mapping[str, Sequence[Mapping[str, Any]]]
    shapes: Mapping[str, Transformer]

    def without(self, claim: str) -> Papers:
        return replace(self, claims={name: found for name, found in self.claims.items() if name != claim})

    def value(self, claim: str) -> float:
        """The number that another claim publishes."""
        found = self._claim(claim).value
        if not isinstance(found, float):
            raise Refused(f"claim {claim} is {found!r}", rule="a number")
        return found

    def ends(self, claim: str) -> tuple[float, float]:
        """The range that another claim publishes."""
        found = self._claim(claim).value
        if not isinstance(found, tuple):
            raise Refused(f"claim {claim} is {found!r}", rule="a range")
        return found

    def setting(self, claim: str) -> Mapping[str, Any]:
        """The setting of another claim."""
        return self._claim(claim).setting

    def machine(self, name: str) -> Mapping[str, Any]:
        return self._row("machines", id=name)

    def training(self, paper: str, experiment: str) -> Mapping[str, Any]:
        return self._row("training", paper=paper, experiment=experiment)

    def shape(self, name: str) -> Transformer:
        if name not in self.shapes:
            raise UnknownName("model", name, self.shapes)
        return self.shapes[name]

    def _claim(self, name: str) -> Claim:
        if name not in self.claims:
            raise UnknownName("other claim", name, self.claims)
        return self.claims[name]

    def _row(self, group: str, **wanted: str) -> Mapping[str, Any]:
        for row in self.settings.get(group, ()):
            if wanted.items() <= row.items():
                return row
        raise Refused(f"no row of {group} with {wanted}", rule="a published setting")


Answering = Callable[[Question, Any], tuple[Cases, str]]


class Answers:
    """A table of answers. Entered by decorating: the function is asked with the question and a source of knowledge."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Answering]] = {}

    def __call__(self, *claims: str, unit: str) -> Callable[[Answering], Answering]:
        """Enters a function as the answer to `claims`. It returns the cases in `unit` and how they were derived."""

        def enter(function: Answering) -> Answering:
            for claim in claims:
                if claim in self._known:
                    raise Refused(f"two answers to {claim}", rule="one function a claim")
                self._known[claim] = (unit, function)
            return function

        return enter

    def ids(self) -> tuple[str, ...]:
        """The claims that have an answer."""
        return tuple(self._known)

    def answer(self, question: Question, source: Any) -> Answer:
        """Raises UnknownName for a claim without an answer, Refused where the source lacks what it needs."""
        if question.id not in self._known:
            raise UnknownName("answer to a claim", question.id, self._known)
        unit, function = self._known[question.id]
        cases, note = function(question, source)
        return Answer(unit, tuple(float(value) for value in _flat(cases)), note)


answers = Answers()  # of the formulas
ids = answers.ids


def distinct(cases: Cases) -> Cases:
    """Each case once: rows that agree need not be told one by one."""
    return list(dict.fromkeys(tuple(case) for case in cases))


def answer(question: Question, papers: Papers) -> Answer:
    """A formula's answer, from all that the papers say but the claim itself."""
    return answers.answer(question, papers.without(question.id))


def _flat(cases: Cases) -> Iterable[Number]:
    return (value for case in cases for value in case)
