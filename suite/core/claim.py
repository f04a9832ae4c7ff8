"""Published claims, and the verdicts on them.

A claim is data (suite/papers/*/claims.yaml): one number, order or equality that a paper printed, with the predicate
that checks it, the tolerance and the scope in which our value stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from suite.core.errors import InvalidRequest


class Evidence(StrEnum):
    """How our value came about. In this order an answer takes the headline of a claim that has several."""

    MEASURED = "measured"  # real ranks: wall clock, bytes as allocated or sent, tensors compared
    DERIVED = "derived"  # our code counts or computes it: schedule, ledger, layout, plan, graph
    EMULATED = "emulated"  # real ranks that sleep instead of computing
    SIMULATED = "simulated"  # virtual time on a modelled machine
    PRINTED = "printed"  # only numbers of the paper, against each other


MODELLED = (Evidence.EMULATED, Evidence.SIMULATED)


class Verdict(StrEnum):
    """Verdict on a claim, given our value. The ordered rules that lead to it stand in suite.report.verdict_rules."""

    REPRODUCED = "reproduced"  # measured or derived, as published, within the tolerance
    MATCHED = "matched by the model"  # simulated or emulated, within the tolerance, by no constant of the same table
    TREND_ONLY = "trend only"  # measured or derived on a stand-in, and the direction holds
    CONSISTENT = "consistent"  # printed numbers agree, our value restates a setting, or no change of the code turns it
    CALIBRATED = "calibrated"  # a constant was fitted to this claim
    CALIBRATED_MISSED = "calibrated, missed"  # and even so our value is outside the tolerance
    FED = "fed by calibration"  # would match, but a constant was fitted to another cell of the same table or figure
    NO_BETTER = "no better than null"  # would match, but the null model is as near
    UNDECIDED = "undecided"  # the interval of repeats spans the tolerance
    NOT_MATCHED = "not matched by the model"
    DIFFERS_ON_STAND_IN = "differs on a stand-in"
    DIFFERS = "differs"  # measured or derived, as published, outside the tolerance
    CONTRADICTED = "contradicted"  # printed numbers disagree; or ours is exact, and a control is reproduced
    NOT_RUN = "not run"


class Scope(StrEnum):
    """On what our value was obtained."""

    AS_PUBLISHED = "as published"
    STAND_IN = "stand-in"  # a smaller model, other data, another graph or partitioner


class Cases(StrEnum):
    """In how many cases a claim has to hold. A hedge of the paper (may, can, normally) asks for fewer than all."""

    ALL = "all"
    MOST = "most"  # more than half
    SOME = "some"  # at least one


class Check(StrEnum):
    """The predicates a claim can name. Each reads our values in the order of the claim's terms, case by case."""

    NUMBER = "number"  # one value per case, within the tolerance of the published one
    RANGE = "range"  # every value between the published ends, which are not widened
    ENDS = "ends"  # our two values, the least and the largest, are the published ends, each within the tolerance
    RISES = "rises"  # strictly greater from term to term
    FALLS = "falls"  # strictly smaller from term to term
    NEVER_FALLS = "never falls"  # no smaller from term to term: the claim allows ties
    LEAST = "least"  # the first term is smaller than every other
    GREATEST = "greatest"  # the first term is greater than every other
    EQUAL = "equal"  # all terms equal the first, within the tolerance
    FORMULA = "formula"  # the value at every point is what the published expression gives there


Scalar = str | int | float  # of a published setting: a key says the unit
Settings = Mapping[str, Sequence[Mapping[str, Scalar]]]  # rows by group
Argument = Scalar | Sequence[Scalar]  # of a function that answers a claim

EXACT = frozenset({"equality", "formula"})
NUMBER_TOLERANCE = 0.08  # relative, for a printed number without a reason for another


class Role(StrEnum):
    """Kind of statement that a claim makes in its paper."""

    MEASUREMENT = "measurement"  # the authors ran it
    SETTING = "setting"  # they chose it
    DEFINITION = "definition"
    DERIVATION = "derivation"  # it follows from formulas
    ARITHMETIC = "arithmetic"  # it follows from other printed numbers
    CITED = "cited"  # a result of another work
    OUTLOOK = "outlook"  # not tried
    EXPLANATION = "explanation"  # a cause that is given, not measured
    DESCRIPTION = "description"  # of a method


@dataclass(frozen=True, slots=True)
class Passage:
    """Fingerprint of the passage that carries a claim: how many words, and the SHA-256 of them (hexadecimal)."""

    words: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One way in which our value of a claim is obtained: by a function, or from the runs of an experiment.

    Attributes:
        figure: Of which the function's value is a part; the executor of that figure computes it.
        function: Dotted path, for example suite.papers.axonn.figures.total_memory.
        arguments: Of the function, by name.
        anchors: Further arguments: printed numbers that set the constant of the function's null model.
        experiment, labels: The runs that are compared, in the order of the claim's terms; of each the curve `series`,
            batch by batch, or the median of `metric`; without labels the executor of `experiment` leaves the value
            itself.
        stand_in: Differences from the published setting; empty: none.
        identity: Holds for any input (equal losses, counts, bytes), so that a stand-in counts as published.
        restates: The definition, setting or literal that our value restates; empty: none.
        turned_by: The mutations, by id, after which its verdict is another (suite.papers.common.mutations).
    """

    evidence: Evidence
    figure: str = ""
    function: str = ""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    anchors: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    experiment: str = ""
    series: str = ""
    metric: str = ""
    labels: tuple[str, ...] = ()
    stand_in: str = ""
    identity: bool = False
    restates: str = ""
    turned_by: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        return Scope.STAND_IN if self.stand_in and not self.identity else Scope.AS_PUBLISHED


@dataclass(frozen=True, slots=True)
class Decision:
    """A contradiction in the papers or between them, and the suite's decision.

    Attributes:
        weight: A changes what counts as reproduced, B needed a choice, C is a slip.
        paper: names, joined by ', '.
        claims: Ids of the claims that it bears on.
    """

    id: str
    weight: str
    paper: str
    where: str
    finding: str
    decision: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One published value.

    Attributes:
        where: The place in the paper: section, table cell, figure or equation.
        asserts: In our words, what the paper asserts there.
        role: Kind of the statement.
        hedge: The paper's own words that limit it (may, can, up to, about).
        printed: Its numbers as the text has them.
        limits: Parts of the passage that the check does not test, or that it takes over from the paper; the page shows
            them next to the verdict.
        passage: The fingerprint of the text that carries it.
        value: A number, (low, high) with inf for an open end, or text for an equality or a quality.
        kind: number, ratio, range, order, equality, formula, ... (as the claim files name them).
        check: The predicate that judges it.
        tolerance: relative, the default follows from kind.
        because: The reason for another tolerance, another direction than `value` says, or a scope, wherever the row
            departs from the defaults.
        cases: In how many cases it has to hold.
        neutral: Where a number changes its meaning (a speedup of 1, a gain of 0); a value on the published side of it
            keeps the trend; None for a number without a direction.
        terms: Names of our values, in order: two systems, four models, six group sizes; one name for a single number.
        expression, points: Of a formula, in plain arithmetic over its symbols, and the symbols' values to try.
        answers: The ways in which our value is obtained; none: nothing here runs it.
        control: Id of another claim that the same code answers and that has to hold before this one is contradicted.
    """

    id: str
    paper: str
    where: str
    quantity: str
    system: str
    value: float | tuple[float, float] | str
    unit: str
    kind: str
    reach: str
    versus: str | None = None
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    note: str = ""
    check: Check = Check.NUMBER
    tolerance: float | None = None
    cases: Cases = Cases.ALL
    because: str = ""
    neutral: float | None = None
    terms: tuple[str, ...] = ()
    expression: str = ""
    points: tuple[Mapping[str, float], ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    control: str = ""
    asserts: str = ""
    role: Role = Role.MEASUREMENT
    hedge: str = ""
    limits: str = ""
    printed: tuple[str, ...] = ()
    passage: Passage | None = None

    @property
    def displays(self) -> frozenset[str]:
        """The tables and figures that print it: {'samo Table II'}."""
        kinds = re.findall(r"(Table|Figure)s? ((?:\w+(?:\(\w\))?(?:, | and )?)+)", self.where)
        return frozenset(
            f"{self.paper} {kind} {name}" for kind, text in kinds for name in re.findall(r"\b([IVX]+|\d+)\b", text)
        )

    def within(self, ours: float) -> bool:
        """Whether `ours` is the published number within the tolerance; a range is not widened."""
        low, high = self.ends
        if isinstance(self.value, float):  # as a distance: the ends are rounded
            return math.isfinite(ours) and abs(ours - self.value) <= self.slack
        return math.isfinite(ours) and low <= ours <= high

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest of our values that the claim allows; for a range, the printed bounds."""
        if isinstance(self.value, str):
            raise InvalidRequest(f"claim {self.id} is {self.value!r}", rule="only numbers and ranges have a tolerance")
        if isinstance(self.value, tuple):
            return self.value
        return self.around(self.value)

    def around(self, printed: float) -> tuple[float, float]:
        """The least and the greatest value that is `printed`, a number or an end of a range, within the tolerance."""
        return printed - self.slack_of(printed), printed + self.slack_of(printed)

    @property
    def slack(self) -> float:
        """How far our value may lie from a published number. A tolerance of 0 is a count: no other number is it."""
        return 0.0 if isinstance(self.value, str | tuple) else self.slack_of(self.value)

    def slack_of(self, printed: float) -> float:
        """How far our value may lie from `printed`, a published number or an end of a published range."""
        if self.tolerance is not None:  # stated: the last digit would let 1.0 pass for a 2.0 that a file gives for "2x"
            return self.tolerance * abs(printed)
        return 0.0 if self.kind in EXACT else max(NUMBER_TOLERANCE * abs(printed), last_digit(printed))


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim and one of our values of it.

    Attributes:
        ours: Our values, case by case in the order of the claim's terms; empty where nothing was run.
        why: One sentence: what was compared with what, or why nothing was.
        evidence: How our values came about; None where there are none.
        scope, stand_in: On what they were obtained.
        record: The file of the record in the reports folder.
        command: Of the run that made it.
        answer_seconds: That the function of our value took.
        experiment_seconds: Of the whole experiment of the record, on two quiet cores; None where unknown.
        note: Further remarks, such as an order that holds where the size does not.
        repeats: The fewest repeats behind one of our values; 0: it is exact, a count, a comparison of tensors or
            computed.
        sensitivity: For a simulated value, its range and whether the verdict turns within the ranges of the constants
            it reads.
        others: The same of the claim's other answers, which do not take the headline.
    """

    claim: Claim
    verdict: Verdict
    why: str
    evidence: Evidence | None = None
    scope: Scope = Scope.AS_PUBLISHED
    stand_in: str = ""
    ours: tuple[tuple[float, ...], ...] = ()
    record: str = ""
    experiment: str = ""
    command: str = ""
    answer_seconds: float | None = None
    experiment_seconds: float | None = None
    note: str = ""
    repeats: int = 0
    sensitivity: Sensitivity | None = None
    others: tuple[Judged, ...] = ()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Where the verdict is another within the stated ranges."""
        turns = self.sensitivity.turns if self.sensitivity else ()
        return tuple(turn for turn in turns if turn.verdict != self.verdict)  # it may have been judged anew since


@dataclass(frozen=True, slots=True)
class Turn:
    """A value of a constant or a choice at which a simulated claim has another verdict."""

    constant: str
    at: Scalar
    verdict: str


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A simulated claim over the ranges of all constants and choices that it reads.

    Attributes:
        values: Our smallest and largest.
        turns: Where its verdict is another.
        varied: Other values that were tried.
    """

    claim: str
    verdict: str
    values: tuple[float, float]
    turns: tuple[Turn, ...] = ()
    varied: int = 0


def last_digit(value: float) -> float:
    """One unit of the last printed digit of `value`: 0.01 for 54.78, 1 for 34."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    _, _, decimals = mantissa.partition(".")
    places = 0 if decimals in ("", "0") else len(decimals)
    return float(10.0 ** (int(exponent or 0) - places))
