"""Quartiles of the samples of one measurement. Imports the standard library only, so that ranks can use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import quantiles


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, interpolated linearly. Raises ValueError without samples."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = quantiles(values, n=4, method="inclusive")
    return low, median, high


def relative_iqr(values: Sequence[float]) -> float:
    """Interquartile range in percent of the median; nan for fewer than two samples."""
    if len(values) < 2:
        return math.nan
    low, median, high = quartiles(values)
    return 100 * (high - low) / median
