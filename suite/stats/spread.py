"""Quartiles of the samples of one measurement. Imports the standard library only, so that ranks can use it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, interpolated linearly. Raises ValueError without samples."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = quantiles(values, n=4, method="inclusive")
    return low, median, high
