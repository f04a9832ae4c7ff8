"""Judgement of a published number at the edge of its tolerance.

A tolerance that is wrong by a digit would turn a refuted claim into a reproduced one.
"""

from __future__ import annotations

import math

import pytest

from suite.claims.claim import Claim, last_digit
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused


def claim(value: float | tuple[float, float] | str, kind: str = "number", tolerance: float | None = None) -> Claim:
    return Claim(
        "c1", "axonn", "abstract", "percent of peak", "axonn", value, "%", kind, "cluster", tolerance=tolerance
    )


def test_last_digit() -> None:
    for printed, unit in (
        *((54.78, 0.01), (49.4, 0.1), (34.0, 1.0), (34, 1.0), (0.5, 0.1), (-2.25, 0.01), (3e11, 1.0), (0.0, 1.0)),
        *((1e-05, 1e-05), (1.5e-07, 1e-08)),
    ):
        assert last_digit(printed) == pytest.approx(unit, rel=1e-12)


def test_within() -> None:
    for subject, inside, outside in (
        # 8 percent of 54.78 is 4.3824
        (claim(54.78), [54.78, 50.3977, 59.1623], [50.3975, 59.1625]),
        (claim(-50.0), [-46.0, -54.0], [-45.9, -54.1, 50.0]),
        # one unit of the last printed digit is more than 8 percent of 3
        (claim(3.0), [2.0, 4.0], [1.99, 4.01]),
        (claim(100.0, tolerance=0.01), [99.0, 101.0], [98.99, 101.01]),
        # a stated tolerance holds as it stands: the last digit of a rough 2 does not widen it
        (claim(2.0, tolerance=0.25), [1.5, 2.5], [1.49, 2.51, 1.0]),
        # a tolerance of 0 is a count
        (claim(100.0, tolerance=0.0), [100.0], [99.0, 101.0, 100.0 + 1e-9]),
        (claim((49.4, 54.78), "range"), [49.4, 52.0, 54.78], [49.39, 54.79]),
        (claim((10.0, math.inf), "range"), [10.0, 1e9], [9.99]),
        (claim(22.0, "formula"), [22.0], [22.0 + 1e-9, 21.0]),
        (claim(22.0, "equality"), [22.0], [22.5]),
        (claim(22.0, "equality", tolerance=0.1), [20.0, 24.0], [19.5]),
    ):
        assert [value for value in inside if not subject.within(value)] == [], subject
        assert [value for value in (*outside, math.nan, math.inf, -math.inf) if subject.within(value)] == [], subject
    with refused(InvalidRequest, rule="only numbers and ranges"):
        claim("identical", "equality").within(1.0)
