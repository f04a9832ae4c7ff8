"""Answers to published claims: functions that compute our values, and the data that they may read.

An answer may read the value of another claim (Table II's G_inter), but never its own: the claim it sees lacks the
value, and no argument states it (tests/laws/test_blind.py). Printed numbers that set a null model are anchors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from typing import Any

from suite.core import blind
from suite.core.blind import Hidden
from suite.core.claim import AnswerRow, Claim, Evidence, Scalar, Settings
from suite.core.errors import HiddenOutcome, InvalidRequest, UnknownName
from suite.core.record import Metric
from suite.papers.common import trace
from suite.workload import Transformer

Number = Any  # float, int or Fraction: a fraction reaches the record as the nearest float
Cases = Sequence[Sequence[Number]]
WithNull = tuple[Cases, str, Cases]  # an answer, and the null model's values for it


@dataclass(frozen=True, slots=True)
class Question:
    """A claim without its answer.

    Attributes:
        points: Symbol values of a formula.
        terms: Meaning of the values of one case.
    """

    setting: Mapping[str, Scalar]
    points: tuple[Mapping[str, float], ...] = ()
    terms: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> Question:
        return cls(claim.setting, claim.points, claim.terms)

    def whole_points(self) -> list[dict[str, int]]:
        """The points of a formula whose symbols count something."""
        return [{name: int(value) for name, value in point.items()} for point in self.points]


@dataclass(frozen=True, slots=True)
class Answer:
    """values: the cases one after the other; note: in one line, how they were derived

    reads: names of constants, plans, graphs and other claims; fed_by: the claims that these were fitted to or chosen by
    null: what the null model gives in place of each value; empty where there is none
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
    """The papers' data apart from the claim in question, and the shapes of their models.

    Attributes:
        settings: The published settings by group, of which machines and training are read.
        shapes: GPTs by name.
    """

    claims: Mapping[str, Claim]
    settings: Settings
    shapes: Mapping[str, Transformer]

    def without(self, claim: str) -> Papers:
        return replace(self, claims={name: outcome for name, outcome in self.claims.items() if name != claim})

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """Nothing that the papers print was fitted here."""
        return ()

    def value(self, claim: str) -> float:
        """The number that another claim publishes."""
        trace.read(f"claim.{claim}")
        outcome = self._outcome(claim)
        if not isinstance(outcome, float):
            raise InvalidRequest(f"claim {claim} is {outcome!r}", rule="a number")
        return outcome

    def exact(self, claim: str) -> Fraction:
        """The number that another claim publishes, as its decimals have it: 5.01 is 501 hundredths."""
        return Fraction(repr(self.value(claim)))

    def ends(self, claim: str) -> tuple[float, float]:
        """The range that another claim publishes."""
        trace.read(f"claim.{claim}")
        outcome = self._outcome(claim)
        if not isinstance(outcome, tuple):
            raise InvalidRequest(f"claim {claim} is {outcome!r}", rule="a range")
        return outcome

    def printed(self, claim: str) -> tuple[str, ...]:
        """The numbers that stand in the passage of another claim, as the text writes them."""
        trace.read(f"claim.{claim}")
        return self._claim(claim).printed

    def setting(self, claim: str) -> Mapping[str, Scalar]:
        """The setting of another claim."""
        return self._claim(claim).setting

    def machine(self, name: str) -> Mapping[str, Scalar]:
        return self._row("machines", id=name)

    def training(self, paper: str, experiment: str) -> Mapping[str, Scalar]:
        return self._row("training", paper=paper, experiment=experiment)

    def shape(self, name: str) -> Transformer:
        if name not in self.shapes:
            raise UnknownName("model", name, self.shapes)
        return self.shapes[name]

    def _outcome(self, name: str) -> float | tuple[float, float] | str:
        value = self._claim(name).value
        if isinstance(value, Hidden):
            raise HiddenOutcome(name)
        return value

    def _claim(self, name: str) -> Claim:
        if name not in self.claims:
            raise UnknownName("other claim", name, self.claims)
        return self.claims[name]

    def _row(self, group: str, **wanted: str) -> Mapping[str, Scalar]:
        for row in self.settings.get(group, ()):
            if wanted.items() <= row.items():
                return row
        raise InvalidRequest(f"no row of {group} with {wanted}", rule="a published setting")


def range_of_setting(question: Question, name: str) -> tuple[str, str]:
    """Ends of a setting's range: ('0.8', '0.9') of 0.8..0.9. Raises InvalidRequest for a value that is no range."""
    text = str(question.setting[name])
    low, dots, high = text.partition("..")
    if not (low and dots and high):
        raise InvalidRequest(f"the setting {name} is {text!r}", rule="from and to", legal="0.8..0.9")
    return low, high


def distinct_cases(cases: Cases) -> Cases:
    """Each case once: rows that agree need not be told one by one."""
    return list(dict.fromkeys(tuple(case) for case in cases))


def answer(claim: Claim, row: AnswerRow, source: Any) -> Answer:
    """Our value of a claim, by the function that its row names.

    Args:
        claim: its published value and expression stay hidden from the function
        row: one of its answers, by a function
        source: what the function reads besides the question: simulated runs, graphs, or the papers' other claims

    Raises:
        InvalidRequest: the source lacks what the function needs
        UnknownName: no function has the name that the row gives
    """
    answering = source.without(claim.id) if isinstance(source, Papers) else source
    with trace.record_reads() as reads:
        cases, note, *null = function_of(row)(Question.of(claim), answering, **row.arguments, **row.anchors)
    values = tuple(float(value) for case in cases for value in case)
    nulls = tuple(float(value) for cases in null for case in cases for value in case)
    if not all(map(math.isfinite, nulls)):
        nulls = ()
    fitted = (name for each in sorted(reads) for name in source.fitted_to(each)) if source else ()
    return Answer(claim.unit, values, note, row.evidence, tuple(sorted(reads)), tuple(dict.fromkeys(fitted)), nulls)


def answers_of_figure(published: Iterable[Claim], figure: str) -> list[tuple[Claim, AnswerRow]]:
    """The claims that have an answer computed with `figure`, in their order, each with that answer."""
    return [(claim, row) for claim in published for row in claim.answers if row.figure == figure]


def function_of(answer: AnswerRow) -> Callable[..., tuple[Cases, str] | WithNull]:
    """The function that a row names, imported with its module. Raises UnknownName where there is none.

    It returns our values case by case, a note on how they were derived, and the null model's values if it has them.
    """
    module, _, name = answer.function.rpartition(".")
    functions = vars(import_module(module))
    if name not in functions:
        raise UnknownName(f"answer in {module}", name, functions)
    function: Callable[..., tuple[Cases, str] | WithNull] = functions[name]
    return function


def metrics_of(asked: Iterable[tuple[Claim, AnswerRow]], source: Any) -> dict[str, Metric]:
    """Our values by claim, as a record keeps them, each with the seconds that its function took: what several answers
    share (a simulated batch, ranks that ran) counts for the first of them.

    In blind mode answers from printed numbers are left out: they are filled in when the records are written
    (suite.papers.common.fill)."""
    hides = blind.active()
    return {
        claim.id: _metric(claim, row, source)
        for claim, row in asked
        if not (hides and row.evidence is Evidence.PRINTED)
    }


def _metric(claim: Claim, row: AnswerRow, source: Any) -> Metric:
    start = time.perf_counter()
    ours = answer(claim, row, source)
    seconds = time.perf_counter() - start
    evidence = ours.evidence.value
    return Metric(ours.unit, "", ours.values, ours.note, evidence, ours.reads, ours.fed_by, ours.null, seconds)
