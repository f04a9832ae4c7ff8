"""Quartiles of samples."""

from __future__ import annotations

import math

import pytest

from suite.stats.spread import quartiles, relative_iqr


def test_quartiles_are_interpolated() -> None:
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == (2, 3, 4)
    assert quartiles([7.0]) == (7, 7, 7)


def test_relative_iqr_needs_two_samples() -> None:
    assert relative_iqr([5.0, 1.0, 3.0, 2.0, 4.0]) == pytest.approx(200 / 3)
    assert relative_iqr([2.0, 2.0]) == 0
    assert math.isnan(relative_iqr([1.0]))
