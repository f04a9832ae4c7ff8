"""Criteria of a change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from suite.regression.decide import (
    ChangeRule,
    ChangeVerdict,
    decide_repeats,
    decide_rounds,
)
from suite.stats.inference import Effect

RULE = ChangeRule()
EFFECT = Effect(ratio=1.1, low=1.06, high=1.2, delta=0.9, p=0.001, min_p=1e-5, repeats=(10, 10))
ROUNDS = dataclasses.replace(EFFECT, low=1.05, repeats=(12, 12))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ChangeVerdict.WORSE),
        ({"low": 0.99}, ChangeVerdict.INCONCLUSIVE),  # the interval includes 1
        ({"ratio": 1.04}, ChangeVerdict.INCONCLUSIVE),  # below the threshold, and the interval exceeds it
        ({"delta": 0.4}, ChangeVerdict.INCONCLUSIVE),  # a medium effect
        ({"p": 0.02}, ChangeVerdict.INCONCLUSIVE),
        ({"low": 0.96, "high": 1.04, "ratio": 1.0}, ChangeVerdict.SAME),
        ({"low": 0.94, "high": 1.04, "ratio": 1.0}, ChangeVerdict.INCONCLUSIVE),
        ({"low": 1.0, "high": 1.0, "ratio": 1.0, "repeats": (1, 1)}, ChangeVerdict.INCONCLUSIVE),
    ],
)
def test_change_satisfies_four_conditions(changes: dict[str, Any], expected: ChangeVerdict) -> None:
    effect = dataclasses.replace(EFFECT, **changes)
    assert decide_repeats(effect, effect.p, "lower", RULE) is expected


def test_direction_of_the_metric_decides() -> None:
    less = dataclasses.replace(EFFECT, ratio=0.9, low=0.85, high=0.95)
    for effect, better, expected in (
        (less, "lower", ChangeVerdict.BETTER),
        (less, "higher", ChangeVerdict.WORSE),
        (EFFECT, "higher", ChangeVerdict.BETTER),
        (EFFECT, "", ChangeVerdict.CHANGED),
    ):
        assert decide_repeats(effect, effect.p, better, RULE) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ChangeVerdict.WORSE),
        ({"p": 0.012}, ChangeVerdict.INCONCLUSIVE),
        ({"low": 0.99}, ChangeVerdict.INCONCLUSIVE),
        ({"ratio": 1.04, "low": 1.02}, ChangeVerdict.SAME),  # certain, and below the threshold
        ({"ratio": 1.0, "low": 0.98, "high": 1.03, "p": 0.5}, ChangeVerdict.SAME),
        ({"ratio": 1.0, "low": 0.98, "high": 1.03, "p": 0.5, "repeats": (5, 5)}, ChangeVerdict.INCONCLUSIVE),
        ({"ratio": 1.0, "low": 0.8, "high": 1.3, "p": 0.5}, ChangeVerdict.INCONCLUSIVE),
        ({"ratio": 0.9, "low": 0.85, "high": 0.95}, ChangeVerdict.BETTER),
        ({"ratio": 0.98, "low": 0.96, "high": 0.995}, ChangeVerdict.SAME),  # better, and below the threshold
        ({"ratio": 0.9, "low": 0.85, "high": 0.95, "repeats": (5, 5)}, ChangeVerdict.INCONCLUSIVE),
    ],
)
def test_regression_by_rounds_is_certain_and_matters(changes: dict[str, Any], expected: ChangeVerdict) -> None:
    rounds = dataclasses.replace(ROUNDS, **changes)
    assert decide_rounds(rounds, rounds.p, "lower", RULE) is expected
    low, high = 1 / rounds.high, 1 / rounds.low
    rate = dataclasses.replace(rounds, ratio=1 / rounds.ratio, low=low, high=high)
    assert decide_rounds(rate, rate.p, "higher", RULE) is expected
