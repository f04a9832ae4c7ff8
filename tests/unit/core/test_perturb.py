"""Jitter and stragglers: reproducible, and of the requested size."""

from __future__ import annotations

import math
import statistics

import pytest

from suite.core.jitter import Perturbation
from suite.core.op import Kind, Op

OPS = [(rank, Op(rank, Kind(kind), index)) for rank in range(8) for kind in "FB" for index in range(250)]


def factors(slower: Perturbation) -> list[float]:
    return [slower(rank, op) for rank, op in OPS]


def test_another_process_and_machine_draws_the_same() -> None:
    for jittered, value in (
        (Perturbation(7, "uniform", 0.1), 1.0726361638),
        (Perturbation(7, "lognormal", 0.1), 1.1335759431),
    ):
        assert jittered(3, Op.parse("3B5")) == pytest.approx(value, abs=1e-9)


def test_jitter_has_its_spread_and_mean_one() -> None:
    uniform = factors(Perturbation(jitter="uniform", spread=0.3))
    assert 0.7 <= min(uniform) < 0.705
    assert 1.295 < max(uniform) <= 1.3
    assert statistics.mean(uniform) == pytest.approx(1, abs=0.01)
    assert statistics.stdev(uniform) == pytest.approx(0.3 / math.sqrt(3), rel=0.03)
    lognormal = factors(Perturbation(spread=0.2))
    assert statistics.mean(lognormal) == pytest.approx(1, abs=0.012)
    logs = [math.log(factor) for factor in lognormal]
    assert statistics.stdev(logs) == pytest.approx(0.2, rel=0.03)
    assert statistics.mean(logs) == pytest.approx(-0.02, abs=0.01)
    assert sum(log > -0.02 for log in logs) == pytest.approx(len(logs) / 2, rel=0.05)
