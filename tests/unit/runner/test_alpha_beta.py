"""Fit of latency and bandwidth to synthetic times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.microbench.alpha_beta import fit

SIZES = [2**power for power in (3, 6, 8, 10, 12, 14, 16, 18, 20, 21, 22, 24)]


def times(latency: float, bandwidth: float, sizes: list[int] = SIZES) -> list[float]:
    return [latency + size / bandwidth for size in sizes]


@given(st.floats(1e-7, 1e-2), st.floats(1e8, 1e11))
def test_exact_times_give_back_both_numbers(latency: float, bandwidth: float) -> None:
    line = fit(SIZES, times(latency, bandwidth))
    # as long as either shows in the times at all
    if latency > 1e-6 * SIZES[-1] / bandwidth:
        assert line.latency == pytest.approx(latency, rel=1e-6)
    if SIZES[-1] / bandwidth > 1e-6 * latency:
        assert line.bandwidth == pytest.approx(bandwidth, rel=1e-6)
    assert line.misfit < 1e-6
