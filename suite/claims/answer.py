"""Answers to published claims: calls of answer functions, and the data that these may read.

An answer may read the value of another claim, for example G_inter from Table II, but never of its own claim. It
receives the claim without its value, and no argument contains the value (tests/laws/test_blind.py). Printed numbers
that set the constant of a null model are passed as anchors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from suite.claims import trace
from suite.claims.blind import Hidden
from suite.claims.claim import AnswerRow, Claim, Evidence, Scalar, Settings
from suite.core.errors import HiddenOutcome, InvalidRequest, UnknownName
from suite.core.record import Metric
from suite.workload import Transformer

Number = Any  # float, int or Fraction; a record stores the nearest float
Cases = Sequence[Sequence[Number]]
WithNull = tuple[Cases, str, Cases]  # our values by case, a note on their derivation, the null model's values


@dataclass(frozen=True, slots=True)
class Question:
    """A claim without its published value, as an answer function receives it.

    Attributes:
        setting: Published setting of the claim.
        points: Values of the symbols of a formula, one mapping per point.
        terms: Names of the values of one case.
    """

    setting: Mapping[str, Scalar]
    points: tuple[Mapping[str, float], ...] = ()
    terms: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> Question:
        return cls(claim.setting, claim.points, claim.terms)

    def places(self, parameters: Mapping[str, str]) -> list[dict[str, Scalar]]:
        """Values of parameters at each point of a formula, or at the setting; whole numbers as integers.

        Args:
            parameters: Symbol of a point, or name in the setting, by parameter: {"stages": "G_inter"}.
        """
        points: Sequence[Mapping[str, Scalar]] = self.points or (self.setting,)
        return [{name: _whole(point[symbol]) for name, symbol in parameters.items()} for point in points]

    def integer_points(self) -> list[dict[str, int]]:
        """Points of a formula whose symbols are all counts."""
        return [{name: int(value) for name, value in point.items()} for point in self.points]


@dataclass(frozen=True, slots=True)
class Answer:
    """Our values of one claim.

    Attributes:
        unit: Unit of the values.
        values: Values of all cases, one case after the other.
        note: One line on how the values were derived.
        evidence: How the values came about.
        reads: Names of the constants, plans, graphs and other claims that were read.
        fed_by: Ids of the claims to which these inputs were fitted or by which they were chosen.
        null: Null model's value for each of `values`; empty without a null model.
    """

    unit: str
    values: tuple[float, ...]
    note: str
    evidence: Evidence
    reads: tuple[str, ...] = ()
    fed_by: tuple[str, ...] = ()
    null: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Papers:
    """Data of the papers without the claim being answered.

    Attributes:
        claims: Claims by id.
        settings: Published settings by group.
        shapes: GPT shapes by name.
    """

    claims: Mapping[str, Claim]
    settings: Settings
    shapes: Mapping[str, Transformer]

    def without(self, claim: str) -> Papers:
        """Copy without the claim of this id."""
        return replace(self, claims={name: other for name, other in self.claims.items() if name != claim})

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """No claims: printed data is not fitted."""
        return ()

    def ends(self, claim: str) -> tuple[float, float]:
        """Published range of another claim."""
        trace.read(f"claim.{claim}")
        outcome: Any = self._claim(claim).value
        if isinstance(outcome, Hidden):
            raise HiddenOutcome(claim)
        if not isinstance(outcome, tuple):
            raise InvalidRequest(f"claim {claim} is {outcome!r}", rule="a range")
        low, high = outcome
        return low, high

    def setting(self, claim: str) -> Mapping[str, Scalar]:
        """Published setting of another claim."""
        return self._claim(claim).setting

    def machine(self, name: str) -> Mapping[str, Scalar]:
        return self._row("machines", id=name)

    def training(self, paper: str, experiment: str) -> Mapping[str, Scalar]:
        return self._row("training", paper=paper, experiment=experiment)

    def shape(self, name: str) -> Transformer:
        if name not in self.shapes:
            raise UnknownName("model", name, self.shapes)
        return self.shapes[name]

    def _claim(self, name: str) -> Claim:
        if name not in self.claims:
            raise UnknownName("other claim", name, self.claims)
        return self.claims[name]

    def _row(self, group: str, **columns: str) -> Mapping[str, Scalar]:
        for row in self.settings.get(group, ()):
            if columns.items() <= row.items():
                return row
        raise InvalidRequest(f"no row of {group} has {columns}", rule="a published setting")


def range_of_setting(question: Question, name: str) -> tuple[str, str]:
    """Ends of a range in a setting: ('0.8', '0.9') for 0.8..0.9. Raises InvalidRequest if the value is no range."""
    text = str(question.setting[name])
    low, dots, high = text.partition("..")
    if not (low and dots and high):
        raise InvalidRequest(f"the setting {name} is {text!r}", rule="from and to", legal="0.8..0.9")
    return low, high


def distinct_cases(cases: Cases) -> Cases:
    """Cases without repetition."""
    return list(dict.fromkeys(tuple(case) for case in cases))


def answer(claim: Claim, row: AnswerRow, source: Any) -> Answer:
    """Compute our values of a claim by the function of an answer row.

    Args:
        claim: The claim. Its value and expression are hidden from the function.
        row: An answer of the claim with a function.
        source: Data for the function: simulated runs, graphs, or the other claims.

    Raises:
        InvalidRequest: The source lacks data that the function needs.
        UnknownName: The function does not exist.
    """
    answering = source.without(claim.id) if isinstance(source, Papers) else source
    function, question = function_of(row), Question.of(claim)
    with trace.record_reads() as reads:
        if row.at:
            found: Any = [[function(**row.arguments, **place) for place in question.places(row.at)]]
        else:
            found = function(question, answering, **row.arguments, **row.anchors)
    cases, note, *null = found if isinstance(found, tuple) else (found, summary(function))
    values = tuple(float(value) for case in cases for value in case)
    nulls = tuple(float(value) for cases in null for case in cases for value in case)
    if not all(map(math.isfinite, nulls)):
        nulls = ()
    fitted = (name for each in sorted(reads) for name in source.fitted_to(each)) if source else ()
    return Answer(claim.unit, values, note, row.evidence, tuple(sorted(reads)), tuple(dict.fromkeys(fitted)), nulls)


def _whole(value: Scalar) -> Scalar:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def summary(function: Callable[..., object]) -> str:
    """First sentences of a function's documentation, on one line: the note of an answer without another."""
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")


def answers_of_figure(published: Iterable[Claim], figure: str) -> list[tuple[Claim, AnswerRow]]:
    """Answers computed with `figure`, each with its claim, in the order of the claims."""
    return [(claim, row) for claim in published for row in claim.answers if row.figure == figure]


def function_of(answer: AnswerRow) -> Callable[..., Any]:
    """Import the function of an answer row.

    The function returns our values by case, or with them a note on their derivation and, if it has a null model, its
    values. A function whose row has `at` returns the value at one point instead.

    Raises:
        UnknownName: The module has no such function.
    """
    module, _, name = answer.function.rpartition(".")
    functions = vars(import_module(module))
    if name not in functions:
        raise UnknownName(f"answer in {module}", name, functions)
    function: Callable[..., Any] = functions[name]
    return function


def metrics_of(answers: Iterable[tuple[Claim, AnswerRow]], source: Any) -> dict[str, Metric]:
    """Our values by claim as metrics of a record, each with the seconds that its function took.

    The time of a computation that several answers share counts for the first of them."""
    return {claim.id: _metric(claim, row, source) for claim, row in answers}


def _metric(claim: Claim, row: AnswerRow, source: Any) -> Metric:
    start = time.perf_counter()
    ours = answer(claim, row, source)
    seconds = time.perf_counter() - start
    evidence = ours.evidence.value
    return Metric(ours.unit, "", ours.values, ours.note, evidence, ours.reads, ours.fed_by, ours.null, seconds)
