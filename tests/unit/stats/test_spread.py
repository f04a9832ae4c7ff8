"""Quartiles of samples."""

from __future__ import annotations

from suite.stats.spread import quartiles


def test_quartiles_are_interpolated() -> None:
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == (2, 3, 4)
    assert quartiles([7.0]) == (7, 7, 7)
