"""Spread of samples."""

from __future__ import annotations

import math

import pytest

from suite.stats.spread import middle_half


def test_middle_half_by_hand() -> None:
    """Quartiles of 1 to 5 are 2 and 4, the median is 3."""
    assert middle_half([5.0, 1.0, 3.0, 2.0, 4.0]) == pytest.approx(200 / 3)
    assert middle_half([2.0, 2.0]) == 0


def test_one_value_has_no_spread() -> None:
    assert math.isnan(middle_half([1.0]))
