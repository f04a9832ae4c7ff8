"""Fit latency and bandwidth (alpha and beta) to measured times, with least relative errors.

The model is time = latency + size / bandwidth (alpha and beta, as Hockney has them). Sizes span six powers of ten,
so absolute errors would be dominated by the largest message: each error counts relative to its own time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """latency: seconds; bandwidth: bytes/s, infinite where times do not grow; misfit: the largest relative error of the
    line at a point that it was fitted to."""

    latency: float
    bandwidth: float
    misfit: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """The line with the least sum of (latency + size / bandwidth) / seconds - 1, squared; neither is negative.

    Raises InvalidRequest for others.

    Args:
        sizes: bytes, at least two that differ.
        seconds: As many, above 0.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(sizes) < 0:
        raise InvalidRequest(
            f"a line through {len(sizes)} sizes, {len(seconds)} times", rule="as many, two sizes, not negative"
        )
    if not all(0 < second < math.inf for second in seconds):
        raise InvalidRequest(f"times {list(seconds)}", rule="finite and above 0 seconds", legal="1.0e-6")
    scale = max(sizes)  # so that both unknowns are seconds
    # of both unknowns: what one of each adds to the relative time at every point
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
