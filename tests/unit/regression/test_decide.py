"""Criteria of a change, and of a candidate regression."""

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
    is_candidate,
    may_hide_regression,
    rounds_p,
)
from suite.stats.inference import Effect, estimate_effect
from suite.stats.interleaved import InterleavedResult

RULE = ChangeRule()
EFFECT = Effect(ratio=1.1, low=1.06, high=1.2, delta=0.9, p=0.001, min_p=1e-5, repeats=(10, 10))
ROUNDS = InterleavedResult(ratio=1.1, low=1.05, high=1.2, p=0.001, rounds=12, quiet=False, max_worsening=1.2)
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
        ({"p": 0.006}, ChangeVerdict.INCONCLUSIVE),  # 0.012 after two looks
        ({"low": 0.99}, ChangeVerdict.INCONCLUSIVE),
        ({"ratio": 1.04, "low": 1.02}, ChangeVerdict.SAME),  # certain, and below the threshold
        ({"ratio": 1.0, "low": 0.98, "p": 0.5, "max_worsening": 1.03}, ChangeVerdict.SAME),
        ({"ratio": 1.0, "low": 0.8, "p": 0.5, "max_worsening": 1.3}, ChangeVerdict.INCONCLUSIVE),
    ],
)
def test_regression_by_rounds_is_certain_and_matters(changes: dict[str, Any], expected: ChangeVerdict) -> None:
    test = dataclasses.replace(ROUNDS, **changes)
    assert decide_rounds(test, rounds_p(test.p), "lower", RULE) is expected


def test_wide_interval_may_hide_a_regression() -> None:
    for better, low, high, expected in (
        ("lower", 0.98, 1.03, False),
        ("lower", 0.5, 1.2, False),  # an improvement of any size is possible
        ("lower", 0.7, 1.4, True),
        ("higher", 0.7, 1.4, True),
        ("higher", 0.9, 1.6, False),
    ):
        effect = Effect(ratio=1.0, low=low, high=high, delta=0.0, p=1.0, min_p=0.001, repeats=(10, 10))
        assert may_hide_regression(effect, better, 0.35) is expected
        assert not is_candidate(effect, None, better, RULE)


def test_unpaired_threshold_holds_for_both_scalings() -> None:
    for ratio, scaled_ratio, delta, expected in (
        (1.5, 1.5, 1.0, ChangeVerdict.WORSE),
        (1.5, 1.1, 1.0, ChangeVerdict.SAME),
        (1.1, 1.5, 1.0, ChangeVerdict.SAME),
        (1.3, 1.3, 1.0, ChangeVerdict.SAME),
        (1.5, 1.5, 0.1, ChangeVerdict.SAME),
    ):
        effect = dataclasses.replace(EFFECT, ratio=ratio, delta=delta)
        assert exceeds_unpaired_threshold(effect, [ratio, scaled_ratio], "lower", 0.35) is expected
