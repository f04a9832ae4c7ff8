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


EXACT = frozenset({"equality", "formula"})
NUMBER_TOLERANCE = 0.08  # relative, for a printed number without a reason for another


@dataclass(frozen=True, slots=True)
class Claim:
    """One published value.

    value: a number, (low, high) with inf for an open end, or text for an equality or a quality
    kind: number, ratio, range, order, equality, formula, ... (as the claim files name them)
    check: named predicate over records; tolerance: relative; the default follows from kind
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
    check: str = ""
    tolerance: float | None = None
    scope: Scope = Scope.AS_PUBLISHED

    def within(self, ours: float) -> bool:
        """Whether `ours` is the published number within the tolerance; a range is not widened."""
        if isinstance(self.value, str):
            raise Refused(f"claim {self.id} is {self.value!r}", rule="only numbers and ranges have a tolerance")
        if not math.isfinite(ours):
            return False
        if isinstance(self.value, tuple):
            low, high = self.value
            return low <= ours <= high
        if self.kind in EXACT and self.tolerance is None:
            return ours == self.value
        allowed = (NUMBER_TOLERANCE if self.tolerance is None else self.tolerance) * abs(self.value)
        return abs(ours - self.value) <= max(allowed, last_digit(self.value))


def last_digit(value: float) -> float:
    """One unit of the last printed digit of `value`: 0.01 for 54.78, 1 for 34."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    _, _, decimals = mantissa.partition(".")
    places = 0 if decimals in ("", "0") else len(decimals)
    return float(10.0 ** (int(exponent or 0) - places))
