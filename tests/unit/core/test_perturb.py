"""Jitter and stragglers: reproducible, and of the requested size."""

from __future__ import annotations

import math
import statistics

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import Kind, Op
from tests.support.refusals import refused

OPS = [(rank, Op(rank, Kind(kind), index)) for rank in range(8) for kind in "FB" for index in range(250)]


def factors(slower: Perturbation) -> list[float]:
    return [slower(rank, op) for rank, op in OPS]


def test_jitter_factor_depends_on_seed_rank_and_op() -> None:
    slower, again = Perturbation(3, spread=0.2), Perturbation(3, spread=0.2)
    assert factors(slower) == [again(rank, op) for rank, op in reversed(OPS)][::-1]
    assert len(set(factors(slower))) == len(OPS)
    assert not set(factors(slower)) & set(factors(Perturbation(4, spread=0.2)))
    op = Op.parse("1F7")
    assert len({slower(0, op), slower(1, op), slower(0, Op.parse("2F7")), slower(0, Op.parse("1B7"))}) == 4
    assert Perturbation().nothing
    assert set(factors(Perturbation(seed=3))) == {1.0}


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


def test_what_is_no_factor_is_refused() -> None:
    for perturbation, key, legal in (
        (Perturbation(stragglers={4: 2.0}), "stragglers", "stragglers={3: 2.0}"),
        (Perturbation(stragglers={1: 2.0, -1: 2.5}), "stragglers", "stragglers={3: 2.5}"),
        (Perturbation(jitter="uniform", spread=1.0), "jitter.spread", "jitter.spread=0.1"),
    ):
        with refused(InvalidRequest, key, legal=legal):
            perturbation.check(Grid(data=2, inter=2))
