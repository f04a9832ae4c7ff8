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
    exceeds_unpaired_threshold,
)
from suite.stats.inference import Effect, estimate_effect

RULE = ChangeRule()
EFFECT = Effect(ratio=1.1, low=1.06, high=1.2, delta=0.9, p=0.001, min_p=1e-5, repeats=(10, 10))
ROUNDS = dataclasses.replace(EFFECT, low=1.05, repeats=(12, 12))
STEADY = [[1.0 + 0.001 * turn + 0.002 * batch for batch in range(4)] for turn in range(10)]


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


@pytest.mark.parametrize(
    ("factor", "better", "expected"),
    [
        (1.10, "lower", ChangeVerdict.WORSE),
        (0.90, "lower", ChangeVerdict.BETTER),
        (0.90, "higher", ChangeVerdict.WORSE),
        (1.10, "higher", ChangeVerdict.BETTER),
        (1.10, "", ChangeVerdict.CHANGED),
        (1.03, "lower", ChangeVerdict.SAME),  # certain, and below the threshold
        (1.00, "lower", ChangeVerdict.SAME),
    ],
)
def test_size_and_direction_decide(factor: float, better: str, expected: ChangeVerdict) -> None:
    effect = estimate_effect(STEADY, [[value * factor for value in samples] for samples in STEADY])
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
    ],
)
def test_regression_by_rounds_is_certain_and_matters(changes: dict[str, Any], expected: ChangeVerdict) -> None:
    rounds = dataclasses.replace(ROUNDS, **changes)
    assert decide_rounds(rounds, rounds.p, "lower", RULE) is expected
    low, high = 1 / rounds.high, 1 / rounds.low
    rate = dataclasses.replace(rounds, ratio=1 / rounds.ratio, low=low, high=high)
    assert decide_rounds(rate, rate.p, "higher", RULE) is expected


def test_unpaired_threshold_needs_a_large_change() -> None:
    for ratio, better, delta, expected in (
        (1.5, "lower", 1.0, ChangeVerdict.WORSE),
        (0.6, "higher", 1.0, ChangeVerdict.WORSE),
        (1.3, "lower", 1.0, ChangeVerdict.SAME),
        (1.5, "lower", 0.1, ChangeVerdict.SAME),
    ):
        effect = dataclasses.replace(EFFECT, ratio=ratio, delta=delta)
        assert exceeds_unpaired_threshold(effect, better, 0.35) is expected
