"""Fit latency and bandwidth (alpha and beta) to measured times, with least relative errors.

The model is Hockney's: time = latency + size / bandwidth. Sizes span six powers of ten, so that the largest message
would dominate absolute errors: each error is relative to its own time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta:
    """The line with the least sum of squares of (latency + size / bandwidth) / seconds - 1. Neither is negative.

    Args:
        sizes: Bytes, at least two different values.
        seconds: One time above 0 per size.
    """
    import numpy as np
    from scipy.optimize import nnls

    scale = max(sizes)  # gives both unknowns the unit of seconds
    relative = np.array([(1, size / scale) for size in sizes]) / np.array(seconds)[:, None]
    (latency, slope), _ = nnls(relative, np.ones(len(sizes)))
    misfit = np.abs(relative @ (latency, slope) - 1).max()
    return AlphaBeta(float(latency), float(scale / slope) if slope else math.inf, float(misfit))
