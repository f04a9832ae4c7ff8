"""Derivatives and minima by finite differences.

The papers' derivatives are judged against these; an error here would judge them all at once.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.papers.common.finite_difference import minimum, slope
from tests.support.refusals import refused

whole = st.integers(-50, 50)


@given(whole, whole, whole, st.fractions(-9, 9, max_denominator=20))
def test_the_slope_of_a_parabola_is_exact(a: int, b: int, c: int, at: Fraction) -> None:
    assert slope(lambda x: a * x * x + b * x + c, at) == 2 * a * at + b


def test_the_slope_of_other_functions_by_hand() -> None:
    assert float(slope(lambda x: 1 / x, 4)) == -0.0625  # -1 / x^2
    assert float(slope(lambda x: x**3, 2)) == 12.0
    assert float(slope(lambda x: x**3, 0.5)) == 0.75
    assert slope(lambda x: Fraction(7), 3) == 0


@pytest.mark.parametrize(
    ("low", "high", "least"), [(0, 10, Fraction(3, 2)), (-5, 2, Fraction(3, 2)), (0.25, 3, Fraction(3, 2))]
)
def test_the_minimum_of_a_parabola(low: float, high: float, least: Fraction) -> None:
    assert abs(minimum(lambda x: (2 * x - 3) ** 2, low, high) - least) < Fraction(1, 10**20)


def test_a_minimum_that_is_no_fraction() -> None:
    assert float(minimum(lambda x: 2 / x + x, 1, 2)) == 2**0.5


@pytest.mark.parametrize(("low", "high"), [(2, 5), (-5, 1), (Fraction(3, 2), 4)])
def test_a_range_without_a_valley_is_refused(low: float, high: float) -> None:
    with refused(InvalidRequest, subject="no valley", rule="falls at the low end and rises at the high end"):
        minimum(lambda x: (2 * x - 3) ** 2, low, high)
