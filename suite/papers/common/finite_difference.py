"""Slopes and minima of the papers' formulas, by finite differences in fractions.

A derivative that is typed next to its function proves nothing about it. In fractions a central difference over a tiny
step has no rounding: its error is the cube term of the function, of relative size step**2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.core.values import Exact

Function = Callable[[Fraction], Fraction]
STEP = Fraction(1, 10**12)


def slope(function: Function, at: Exact) -> Fraction:
    """The derivative of `function` at `at`, to a relative error of about (STEP / at)**2."""
    where = Fraction(at)
    return (function(where + STEP) - function(where - STEP)) / (2 * STEP)


def minimum(function: Function, low: Exact, high: Exact) -> Fraction:
    """Where a function with one valley between `low` and `high` is least, by halving to where its slope turns.

    Raises InvalidRequest where it falls or rises all the way: then an end is least, and no valley lies between.
    """
    lower, right = Fraction(low), Fraction(high)
    if not slope(function, lower) < 0 < slope(function, right):
        raise InvalidRequest(
            f"no valley between {low} and {high}", rule="falls at the low end and rises at the high end"
        )
    while right - lower > STEP**2:
        middle = (lower + right) / 2
        if slope(function, middle) < 0:
            lower = middle
        else:
            right = middle
    return (lower + right) / 2
