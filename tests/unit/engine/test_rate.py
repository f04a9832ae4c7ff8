"""Learning-rate schedules against hand-computed rates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from suite.config.plugins import build
from suite.core.errors import InvalidRequest
from suite.engine.optim.lr_schedule import Constant, Polynomial, Steps, WarmupCosine, as_rate


def test_a_number_is_a_constant_rate_and_a_function_is_itself() -> None:
    assert [as_rate(0.25)(update) for update in (0, 1, 10**6)] == [0.25] * 3
    assert as_rate(3)(7) == 3.0
    rate = Constant(0.5)
    assert as_rate(rate) is rate


def test_steps_fall_at_the_milestone_itself() -> None:
    rate = Steps(0.5, (2, 5), 0.5)
    assert [rate(update) for update in range(7)] == [0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]
    assert Steps(0.1, [30])(30) == pytest.approx(0.01)


def test_warmup_rises_to_the_rate_and_half_a_cosine_falls_to_the_floor() -> None:
    rate = WarmupCosine(1.0, 12, warmup=4, floor=0.2)
    assert [rate(update) for update in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    quarter = 0.2 + 0.8 * 0.5 * (1 + math.sqrt(0.5))
    assert rate(6) == pytest.approx(quarter, rel=1e-14)
    assert rate(8) == pytest.approx(0.6, rel=1e-14)
    assert rate(12) == pytest.approx(0.2, rel=1e-14)
    assert rate(1000) == rate(12)


def test_cosine_without_warmup_begins_at_the_rate() -> None:
    rate = WarmupCosine(0.3, 2)
    assert (rate(0), rate(1)) == (0.3, pytest.approx(0.15))
    assert rate(2) == pytest.approx(0.0, abs=1e-17)


def test_polynomial() -> None:
    linear = Polynomial(1.0, 4)
    assert [linear(update) for update in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    square = Polynomial(1.0, 4, power=2.0, floor=0.5)
    assert [square(update) for update in range(5)] == [1.0, 0.78125, 0.625, 0.53125, 0.5]


@pytest.mark.parametrize("lr", [-1e-9, math.nan, math.inf, -math.inf])
def test_what_is_no_rate_is_refused(lr: float) -> None:
    with pytest.raises(InvalidRequest, match=r"finite and not negative; legal: 0\.001"):
        as_rate(lr)


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": "suite.engine.optim.lr_schedule.Steps", "lr": 0.5, "milestones": [2, 5], "factor": 0.5},
        {"_target_": "suite.engine.optim.lr_schedule.WarmupCosine", "lr": 0.5, "total": 10, "warmup": 2},
        {"_target_": "suite.engine.optim.lr_schedule.Polynomial", "lr": 0.5, "total": 10},
    ],
    ids=lambda config: config["_target_"].rpartition(".")[2],
)
def test_a_rule_takes_a_rate_from_a_config(config: dict[str, Any]) -> None:
    rule = build({"_target_": "suite.engine.optim.optimizer.SGD", "lr": config})
    assert rule.lr(9) < rule.lr(2) <= 0.5
