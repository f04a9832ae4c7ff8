"""Learning-rate schedules against hand-computed rates."""

from __future__ import annotations

import math

import pytest

from suite import Polynomial, Steps, WarmupCosine


def test_steps_decay_at_milestone() -> None:
    rate = Steps(0.5, (2, 5), 0.5)
    assert [rate(update) for update in range(7)] == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]
    assert Steps(0.1, [30])(30) == pytest.approx(0.01)


def test_warmup_cosine_rises_then_falls_to_floor() -> None:
    rate = WarmupCosine(1.0, 12, warmup=4, floor=0.2)
    assert [rate(update) for update in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    quarter = 0.2 + 0.8 * 0.5 * (1 + math.sqrt(0.5))
    assert rate(6) == pytest.approx(quarter, rel=1e-14)
    assert rate(8) == pytest.approx(0.6, rel=1e-14)
    assert rate(12) == pytest.approx(0.2, rel=1e-14)
    assert rate(1000) == rate(12)
    rate = WarmupCosine(0.3, 2)  # without warm-up it starts at lr
    assert (rate(0), rate(1)) == (0.3, pytest.approx(0.15))
    assert rate(2) == pytest.approx(0.0, abs=1e-17)


def test_polynomial_decays_to_floor() -> None:
    linear = Polynomial(1.0, 4)
    assert [linear(update) for update in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    square = Polynomial(1.0, 4, power=2.0, floor=0.5)
    assert [square(update) for update in range(5)] == [1.0, 0.78125, 0.625, 0.53125, 0.5]
