"""Published claims, and the verdicts on them.

A claim is data (suite/papers/*/claims.yaml): one number, order or equality that a paper printed, with the predicate
that checks it, the tolerance and the scope of our value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Literal

from suite.core.errors import InvalidRequest

_FORM = {"extra": "forbid", "strict": True}  # pydantic's, of a row in a file (suite.claims.load)


class Evidence(StrEnum):
    """Evidence of our value, strongest first. The strongest answer of a claim gives its headline verdict."""

    MEASURED = "measured"  # real ranks: wall clock, bytes as allocated or sent, tensors compared
    DERIVED = "derived"  # our code counts or computes it: schedule, ledger, layout, plan, graph
    EMULATED = "emulated"  # real ranks that sleep instead of computing
    SIMULATED = "simulated"  # virtual time on a modelled machine
    PRINTED = "printed"  # numbers of the paper compared with each other


MODELLED = (Evidence.EMULATED, Evidence.SIMULATED)


class Verdict(StrEnum):
    """Verdict on a claim, given our value. suite.claims.verdict_rules holds the ordered rules."""

    REPRODUCED = "reproduced"  # measured or derived, as published, within the tolerance
    MATCHED = "matched by the model"  # simulated or emulated, in tolerance, no constant fitted to the same table
    TREND_ONLY = "trend only"  # measured or derived on a stand-in, and the direction holds
    CONSISTENT = "consistent"  # printed numbers agree, our value restates a setting, or no mutation changes the verdict
    CALIBRATED = "calibrated"  # a constant was fitted to this claim
    CALIBRATED_MISSED = "calibrated, missed"  # fitted to this claim, but outside the tolerance
    FED = "fed by calibration"  # would match, but a constant was fitted to another cell of the same table or figure
    NO_BETTER = "no better than null"  # would match, but the null model is as close
    UNDECIDED = "undecided"  # the interval of repeats spans the tolerance
    NOT_MATCHED = "not matched by the model"
    DIFFERS_ON_STAND_IN = "differs on a stand-in"
    DIFFERS = "differs"  # measured or derived, as published, outside the tolerance
    CONTRADICTED = "contradicted"  # printed numbers disagree; or ours is exact and the control claim is reproduced
    NOT_RUN = "not run"


class Scope(StrEnum):
    """Whether our value was obtained on the published setting or on a stand-in."""

    AS_PUBLISHED = "as published"
    STAND_IN = "stand-in"  # a smaller model, other data, another graph or partitioner, a reconstructed plan


class Cases(StrEnum):
    """Number of cases in which a claim must hold. A hedge of the paper (may, can, normally) requires fewer than all."""

    ALL = "all"
    MOST = "most"  # more than half
    SOME = "some"  # at least one


class Check(StrEnum):
    """Predicate of a claim. It reads our values case by case, in the order of the claim's terms."""

    NUMBER = "number"  # one value per case, within the tolerance of the published one
    RANGE = "range"  # every value between the published ends; the tolerance does not apply
    ENDS = "ends"  # our smallest and largest value equal the published ends, each within the tolerance
    RISES = "rises"  # strictly greater from term to term
    FALLS = "falls"  # strictly smaller from term to term
    NEVER_FALLS = "never falls"  # no smaller from term to term: the claim allows ties
    LEAST = "least"  # the first term is smaller than every other
    GREATEST = "greatest"  # the first term is greater than every other
    EQUAL = "equal"  # all terms equal the first, within the tolerance
    FORMULA = "formula"  # the value at every point equals the published expression


Scalar = str | int | float  # value of a published setting; its key names the unit
Answered = tuple[str, Evidence]  # an answer, identified by the id of its claim and its evidence
Settings = Mapping[str, Sequence[Mapping[str, Scalar]]]  # rows by group
Argument = bool | Scalar | Sequence[Scalar | Sequence[Scalar]]  # argument of a function that answers a claim
Kind = Literal["number", "ratio", "range", "ordering", "equality", "formula"]
Reach = Literal["analytic", "cpu", "data", "gpu", "cluster"]  # resources that the published run needs

EXACT = frozenset({"equality", "formula"})
NUMBER_TOLERANCE = 0.08  # relative; default for a printed number


class Role(StrEnum):
    """Kind of statement that a claim makes in its paper."""

    MEASUREMENT = "measurement"  # the authors ran it
    SETTING = "setting"  # they chose it
    DEFINITION = "definition"
    DERIVATION = "derivation"  # it follows from formulas
    ARITHMETIC = "arithmetic"  # it follows from other printed numbers
    CITED = "cited"  # a result of another work
    OUTLOOK = "outlook"  # the authors did not try it
    EXPLANATION = "explanation"  # a cause that the authors state and did not measure
    DESCRIPTION = "description"  # description of a method


@dataclass(frozen=True, slots=True)
class Passage:
    """Fingerprint of the passage that states a claim: number of words, and their SHA-256 in hexadecimal."""

    __pydantic_config__ = _FORM
    words: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """Answer to a claim: our value, from a function or from the runs of an experiment.

    Attributes:
        figure: Figure that contains the value of the function; the executor of that figure computes it.
        function: Dotted path, for example suite.papers.axonn.figures.total_memory.
        arguments: Arguments of the function, by name.
        at: For a function of numbers, the symbol of each further argument at the points of the formula, or its name in
            the setting: {stages: G_inter}. The function is called once per point.
        printed: Expressions over printed numbers of other claims, in a list per case: [["'samo.x' / 2"]]. The id of a
            claim stands for its number or the low end of its range, 'ID high' for the high end, and 'ID #2' for the
            second number in its passage. An expression that is a single such symbol needs no quotes.
        anchors: Further arguments: printed numbers that set the constant of the function's null model.
        experiment, labels: Runs to compare, in the order of the claim's terms. Each run contributes its curve `series`,
            batch by batch, or the median of `metric`. Without labels the executor of `experiment` records the value.
        value: Expression over metrics of these runs, such as 100 * (1 - batch_time_1 / batch_time_0).
        stand_in: Differences from the published setting; empty for none.
        identity: Whether the answer holds for any input (equal losses, counts, bytes). A stand-in then counts as
            published.
        restates: Definition, setting or literal of the code that our value repeats; empty for none.
        turned_by: Ids of the mutations that change the verdict (suite.claims.mutate).
    """

    __pydantic_config__ = _FORM
    evidence: Evidence
    figure: str = ""
    function: str = ""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    at: Mapping[str, str] = field(default_factory=dict)
    anchors: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    printed: tuple[tuple[str, ...], ...] = ()
    experiment: str = ""
    series: str = ""
    metric: str = ""
    value: str = ""
    labels: tuple[str, ...] = ()
    stand_in: str = ""
    identity: bool = False
    restates: str = ""
    turned_by: tuple[str, ...] = ()

    @property
    def computed(self) -> bool:
        """Whether our value is computed here: by a function, or from printed numbers."""
        return bool(self.function or self.printed)

    @property
    def scope(self) -> Scope:
        return Scope.STAND_IN if self.stand_in and not self.identity else Scope.AS_PUBLISHED


@dataclass(frozen=True, slots=True)
class Decision:
    """A contradiction in the papers or between them, and the suite's decision.

    Attributes:
        weight: A: it changes which claims count as reproduced. B: it needed a choice. C: it is a misprint.
        paper: Names of the papers, joined by ', '.
        claims: Ids of the affected claims.
    """

    __pydantic_config__ = _FORM
    id: str
    weight: str
    paper: str
    where: str
    finding: str
    decision: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrontRow:
    """What the front page of the report shows of a paper (front.yaml).

    Attributes:
        picture: The published figure or table that is drawn, such as "Figure 9".
        claims: The headline claims by id, in the paper's words cut short.
        panel: Title of its panel; empty for the first one.
    """

    picture: str
    claims: Mapping[str, str]
    panel: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One published value.

    Attributes:
        where: Place in the paper: section, table cell, figure or equation.
        asserts: Assertion of the paper, in our words.
        role: Kind of the statement.
        hedge: Words of the paper that limit the claim (may, can, up to, about).
        printed: Numbers as the paper prints them.
        limits: Parts of the passage that the check does not test or takes over from the paper. The page shows them next
            to the verdict.
        passage: Fingerprint of the text that states the claim.
        value: A number, (low, high) with inf for an open end, or text for an equality or a quality.
        check: Predicate that judges the claim.
        tolerance: Relative tolerance; None for the default of `kind`.
        because: Reason for a tolerance, a direction or a scope that departs from the defaults.
        cases: Number of cases in which the claim must hold.
        neutral: Value at which a number changes its meaning (a speedup of 1, a gain of 0). A value on the published
            side of it keeps the trend. None for a number without a direction.
        terms: Names of our values, in order: two systems, four models, six group sizes; one name for a single number.
        expression, points: Formula in plain arithmetic over its symbols, and the values of the symbols to try.
        answers: Answers of the suite; empty for a claim that the suite does not run.
        control: Id of another claim that the same code answers. This claim is contradicted only if the control holds.
        command: Command that measures the claim on published data or a GPU (commands.yaml of its paper).
    """

    __pydantic_config__ = _FORM
    id: str
    paper: str
    where: str
    quantity: str
    system: str
    value: float | tuple[float, float] | str
    unit: str
    kind: Kind
    reach: Reach
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
    command: str = ""

    @property
    def displays(self) -> frozenset[str]:
        """Tables and figures that print the claim: {'samo Table II'}."""
        kinds = re.findall(r"(Table|Figure)s? ((?:\w+(?:\(\w\))?(?:, | and )?)+)", self.where)
        return frozenset(
            f"{self.paper} {kind} {name}" for kind, text in kinds for name in re.findall(r"\b([IVX]+|\d+)\b", text)
        )

    def within(self, ours: float) -> bool:
        """Whether `ours` is the published number within the tolerance; a range is not widened."""
        low, high = self.ends
        if isinstance(self.value, float):  # compare the distance: the ends are rounded
            return math.isfinite(ours) and abs(ours - self.value) <= self.slack
        return math.isfinite(ours) and low <= ours <= high

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest value that the claim allows; for a range, the printed bounds."""
        if isinstance(self.value, str):
            raise InvalidRequest(f"claim {self.id} is {self.value!r}", rule="only numbers and ranges have a tolerance")
        if isinstance(self.value, tuple):
            return self.value
        return self.around(self.value)

    def around(self, printed: float) -> tuple[float, float]:
        """Smallest and largest value within the tolerance of `printed`, a number or an end of a range."""
        return printed - self.slack_of(printed), printed + self.slack_of(printed)

    @property
    def slack(self) -> float:
        """Largest allowed distance of our value from the published number; 0 for a count, which must be equal."""
        return 0.0 if isinstance(self.value, str | tuple) else self.slack_of(self.value)

    def slack_of(self, printed: float) -> float:
        """Largest allowed distance of our value from `printed`, a published number or an end of a published range."""
        if self.tolerance is not None:  # stated: the last digit would let 1.0 pass for a 2.0 that a file gives for "2x"
            return self.tolerance * abs(printed)
        return 0.0 if self.kind in EXACT else max(NUMBER_TOLERANCE * abs(printed), last_digit(printed))


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim and one of our values of it.

    Attributes:
        ours: Our values, case by case in the order of the claim's terms; empty where nothing was run.
        why: One sentence: the comparison, or the reason why there was none.
        evidence: Evidence of our values; None without values.
        scope, stand_in: Setting in which our values were obtained.
        record: File of the record in the reports folder.
        command: Command of the run that made the record.
        answer_seconds: Seconds that the function of our value took.
        experiment_seconds: Seconds of the whole experiment on two otherwise idle cores; None if unknown.
        note: Further remarks, for example that the order of our values holds although their size does not.
        repeats: Fewest repeats of any of our values; 0 for exact values (counts, comparisons of tensors, computations).
        sensitivity: For a simulated value, its range, and whether the verdict changes within the ranges of the
            constants that it reads.
        others: Judged values of the other answers, which do not give the headline verdict.
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
        """Points within the stated ranges at which the verdict changes."""
        turns = self.sensitivity.turns if self.sensitivity else ()
        return tuple(turn for turn in turns if turn.verdict != self.verdict)  # the claim may have been judged again


@dataclass(frozen=True, slots=True)
class Turn:
    """A value of a constant or a choice at which a simulated claim has another verdict."""

    __pydantic_config__ = _FORM
    constant: str
    at: Scalar
    verdict: str


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of a simulated claim to the constants and choices that it reads, over their stated ranges.

    Attributes:
        values: Our smallest and largest value.
        turns: Points at which the verdict changes.
        varied: Number of other values that were tried.
    """

    __pydantic_config__ = _FORM
    id: str
    verdict: str
    values: tuple[float, float]
    turns: tuple[Turn, ...] = ()
    varied: int = 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of code that must change verdicts.

    Attributes:
        id: Name of the mutation.
        file: Path relative to the repository.
        was: Passages of code, each of which occurs once in the file; one passage needs no list.
        becomes: New code of each passage.
        says: Effect of the change.
        turns: Ids of the claims whose verdicts must change, by the evidence of the answer.
        slowly: More such claims, whose answers take more than a second of CPU time.
    """

    __pydantic_config__ = _FORM
    id: str
    file: str
    was: str | tuple[str, ...]
    becomes: str | tuple[str, ...]
    says: str
    turns: Mapping[Evidence, tuple[str, ...]] = field(default_factory=dict)
    slowly: Mapping[Evidence, tuple[str, ...]] = field(default_factory=dict)

    @property
    def passages(self) -> list[tuple[str, str]]:
        """Each passage with its new code; an empty text for a missing one."""
        was, becomes = ((text,) if isinstance(text, str) else text for text in (self.was, self.becomes))
        return list(zip_longest(was, becomes, fillvalue=""))

    @property
    def quick_answers(self) -> tuple[Answered, ...]:
        return tuple((name, kind) for kind, names in self.turns.items() for name in names)

    @property
    def answers(self) -> tuple[Answered, ...]:
        """Answers whose verdicts must change, the quick ones first."""
        return (*self.quick_answers, *((name, kind) for kind, names in self.slowly.items() for name in names))


def last_digit(value: float) -> float:
    """One unit of the last printed digit of `value`: 0.01 for 54.78, 1 for 34."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    _, _, decimals = mantissa.partition(".")
    places = 0 if decimals in ("", "0") else len(decimals)
    return float(10.0 ** (int(exponent or 0) - places))
