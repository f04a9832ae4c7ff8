"""Fit latency and bandwidth (alpha and beta) to measured times, with least relative errors.

The model is Hockney's: time = latency + size / bandwidth. Sizes span six powers of ten, so that the largest message
would dominate absolute errors: each error is relative to its own time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """A line through measured times.

    Attributes:
        latency: Seconds.
        bandwidth: Bytes/s; infinite where the times do not grow.
        misfit: Largest relative error of the line at a fitted point.
    """

    latency: float
    bandwidth: float
    misfit: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """The line with the least sum of squares of (latency + size / bandwidth) / seconds - 1. Neither is negative.

    Args:
        sizes: Bytes, at least two different values.
        seconds: One time above 0 per size.

    Raises:
        InvalidRequest: For other sizes or times.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(sizes) < 0:
        raise InvalidRequest(
            f"a line through {len(sizes)} sizes and {len(seconds)} times",
            rule="one time per size, at least two different sizes, none negative",
        )
    if not all(0 < second < math.inf for second in seconds):
        raise InvalidRequest(f"times {list(seconds)}", rule="finite and above 0 seconds", legal="1.0e-6")
    scale = max(sizes)  # gives both unknowns the unit of seconds
    # relative time at each point per unit of either unknown
    ones = [1 / second for second in seconds]
    slopes = [size / scale / second for size, second in zip(sizes, seconds, strict=True)]
    count_11, count_12, count_22 = _dot(ones, ones), _dot(ones, slopes), _dot(slopes, slopes)
    sum_1, sum_2 = math.fsum(ones), math.fsum(slopes)
    determinant = count_11 * count_22 - count_12**2
    latency = (sum_1 * count_22 - sum_2 * count_12) / determinant
    slope = (sum_2 * count_11 - sum_1 * count_12) / determinant
    if latency < 0:
        latency, slope = 0.0, sum_2 / count_22
    elif slope <= 0:
        latency, slope = sum_1 / count_11, 0.0
    line = AlphaBeta(latency, scale / slope if slope else math.inf, 0.0)
    misfit = max(abs(line.seconds(size) / second - 1) for size, second in zip(sizes, seconds, strict=True))
    return AlphaBeta(line.latency, line.bandwidth, misfit)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))
