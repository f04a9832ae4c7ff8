"""Fit of latency and bandwidth to synthetic times."""

from __future__ import annotations

import random

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


def test_noise_of_five_percent_moves_neither_by_more() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        line = fit(SIZES, [second * draw.lognormvariate(0.0, 0.05) for second in times(2e-5, 4e9)])
        assert line.latency == pytest.approx(2e-5, rel=0.05)
        assert line.bandwidth == pytest.approx(4e9, rel=0.08)
        assert 0 < line.misfit < 0.2
