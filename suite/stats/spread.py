"""Spread of the samples of one measurement. Loads the standard library only, so that ranks may import it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import quantiles


def middle_half(values: Sequence[float]) -> float:
    """The distance between the quartiles in percent of the median; nan of fewer than two values."""
    if len(values) < 2:
        return math.nan
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return 100 * (high - low) / middle
