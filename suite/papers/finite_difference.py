"""Derivatives and minima of the papers' formulas by finite differences in exact fractions.

A derivative written next to its function would prove nothing about the function. A central difference in fractions has
no rounding error. Its truncation error comes from the cubic term and is of relative size STEP**2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.core.values import Exact

Function = Callable[[Fraction], Fraction]
STEP = Fraction(1, 10**12)


def slope(function: Function, point: Exact) -> Fraction:
    """Derivative of `function` at `point`, with a relative error of about (STEP / point)**2."""
    x = Fraction(point)
    return (function(x + STEP) - function(x - STEP)) / (2 * STEP)


def minimum(function: Function, low: Exact, high: Exact) -> Fraction:
    """Minimum of a function with one valley between `low` and `high`, by bisection of its derivative.

    Raises:
        InvalidRequest: The function does not fall at `low` and rise at `high`.
    """
    lower, upper = Fraction(low), Fraction(high)
    if not slope(function, lower) < 0 < slope(function, upper):
        raise InvalidRequest(
            f"no valley between {low} and {high}", rule="falls at the low end and rises at the high end"
        )
    while upper - lower > STEP**2:
        middle = (lower + upper) / 2
        if slope(function, middle) < 0:
            lower = middle
        else:
            upper = middle
    return (lower + upper) / 2
