"""Formatting of numbers: three digits and decimal prefixes.

A prefix one step off is a factor of a thousand in a report.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.units import seconds, si


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (20.28e9, "B", "20.3 GB"),
        (80.16e9, "B", "80.2 GB"),
        (125e12, "flop/s", "125 Tflop/s"),
        (1000, "B", "1 kB"),
        (999, "B", "999 B"),
        (999.6, "B", "1 kB"),
        (999_999, "B", "1 MB"),
        (-999_999, "B", "-1 MB"),
        (0, "s", "0 s"),
        (0.0015, "s", "1.5 ms"),
        (2e-6, "s", "2 us"),
        (5e-9, "s", "5 ns"),
        (12.0, "", "12"),
        (math.inf, "s", "inf s"),
        (math.nan, "", "nan"),
    ],
)
def test_si(value: float, unit: str, text: str) -> None:
    assert si(value, unit) == text


def test_si_keeps_whole_digits_where_fewer_are_asked() -> None:
    assert si(123.4, "W", digits=2) == "123 W"


@given(st.floats(1e-9, 9e20))
def test_si_is_within_its_digits(value: float) -> None:
    number, _, prefix = si(value, "B").partition(" ")
    scale = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    assert float(number) * scale[prefix.removesuffix("B")] == pytest.approx(value, rel=0.0051)
    assert float(number) < 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (8.2, "8 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3785, "1 h 03 min"),
        (-1, "0 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text
