"""Decides what a published number is, and which verdicts there are about it.

A claim is data (suite/claims/*.yaml): one number, order or equality that a paper printed, with the predicate that
checks it, the tolerance and the scope in which our value stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from suite.core.errors import Refused


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    TREND_ONLY = "trend only"
    REFUTED = "refuted"
    CALIBRATED = "calibrated"
    NOT_RUN = "not run here"


class Scope(StrEnum):
    """How our run relates to the published one. On a stand-in a number is at most `trend only`."""

    AS_PUBLISHED = "as published"
    STAND_IN = "stand-in"
    EMULATED = "emulated"
    SIMULATED = "simulated"


class Check(StrEnum):
    """The predicates a claim can name. Each reads our values in the order of the claim's terms, case by case."""

    NUMBER = "number"  # one value per case, within the tolerance of the published one
    RANGE = "range"  # every value between the published ends, which are not widened
    RISES = "rises"  # strictly greater from term to term
    FALLS = "falls"  # strictly smaller from term to term
    NEVER_FALLS = "never falls"  # no smaller from term to term: the claim allows ties
    LEAST = "least"  # the first term is smaller than every other
    GREATEST = "greatest"  # the first term is greater than every other
    EQUAL = "equal"  # all terms equal the first, within the tolerance
    FORMULA = "formula"  # the value at every point is what the published expression gives there


EXACT = frozenset({"equality", "formula"})
NUMBER_TOLERANCE = 0.08  # relative, for a printed number without a reason for another


@dataclass(frozen=True, slots=True)
class Claim:
    """One published value.

    value: a number, (low, high) with inf for an open end, or text for an equality or a quality
    kind: number, ratio, range, order, equality, formula, ... (as the claim files name them)
    check: the predicate that judges it; tolerance: relative, the default follows from kind; because: the reason for
        another tolerance, another direction than `value` says, or a scope, wherever the row departs from the defaults
    scope: what our run at best is to the published one; the source of the record can only narrow it
    neutral: where a number changes its meaning (a speedup of 1, a gain of 0); a value on the published side of it keeps
        the trend; None for a number without a direction
    terms: what our values are, in order: two systems, four models, six group sizes; one name for a single number
    expression, points: of a formula, in plain arithmetic over its symbols, and the symbols' values to try
    evidence: where our value comes from; empty: the metric of a record that bears the claim's id
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
    setting: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    check: Check = Check.NUMBER
    tolerance: float | None = None
    scope: Scope = Scope.AS_PUBLISHED
    because: str = ""
    neutral: float | None = None
    terms: tuple[str, ...] = ()
    expression: str = ""
    points: tuple[Mapping[str, float], ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def within(self, ours: float) -> bool:
        """Whether `ours` is the published number within the tolerance; a range is not widened."""
        if isinstance(self.value, str):
            raise Refused(f"claim {self.id} is {self.value!r}", rule="only numbers and ranges have a tolerance")
        if not math.isfinite(ours):
            return False
        if isinstance(self.value, tuple):
            low, high = self.value
            return low <= ours <= high
        return abs(ours - self.value) <= self.slack

    @property
    def slack(self) -> float:
        """How far our value may lie from a published number. A tolerance of 0 is a count: no other number is it."""
        if isinstance(self.value, str | tuple):
            return 0.0
        if self.tolerance is not None:  # stated: the last digit would let 1.0 pass for a 2.0 that a file gives for "2x"
            return self.tolerance * abs(self.value)
        return 0.0 if self.kind in EXACT else max(NUMBER_TOLERANCE * abs(self.value), last_digit(self.value))


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim beside what was found here.

    ours: our values, case by case in the order of the claim's terms; empty where nothing was run
    why: one sentence: what was compared with what, or why nothing was
    source: of the record (measured, emulated, simulated, analytic); record: its file in the reports folder
    scope: how our run relates to the published one, after the record's own source was seen
    """

    claim: Claim
    verdict: Verdict
    why: str
    scope: Scope
    ours: tuple[tuple[float, ...], ...] = ()
    source: str = ""
    record: str = ""
    experiment: str = ""
    command: str = ""


def last_digit(value: float) -> float:
    """One unit of the last printed digit of `value`: 0.01 for 54.78, 1 for 34."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    _, _, decimals = mantissa.partition(".")
    places = 0 if decimals in ("", "0") else len(decimals)
    return float(10.0 ** (int(exponent or 0) - places))
