"""Rounds of old and new code that confirm a regression."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from suite.regression.compare.matching import Name, config_key
from suite.regression.compare.metrics import Change
from suite.regression.compare.rounds import RoundsResult
from suite.regression.nightly import confirm, settings
from suite.regression.nightly.confirm import Confirmation, Suspect
from suite.stats.inference import ChangeVerdict, Effect
from tests.support.nights import record, samples

SETTINGS = settings.read([])  # a threshold of 5 %, a level of 0.005
CHANGE = Change(Name("single", "axonn 2x1"), "batch_time", "s", "lower", 1.0, 1.1, ChangeVerdict.WORSE)
TURNED = RoundsResult(ratio=1.1, low=1.05, high=1.2, p=0.001, turns=12, quiet=False, most=1.2)


def findings(*changes: dict[str, Any]) -> list[Confirmation]:
    suspect = Suspect(CHANGE, "system=axonn", "2026-11-01")
    return [Confirmation(suspect, False, "", dataclasses.replace(TURNED, **change)) for change in changes]


@pytest.mark.parametrize(
    ("change", "confirmed", "open_", "told"),
    [
        ({}, True, False, "old and new code in 12 turns: +10.0 % (+5.0 % to +20.0 %), p 0.002"),
        ({"p": 0.004}, False, True, "undecided"),  # twice looked at: 0.008
        ({"low": 0.99}, False, True, "undecided"),
        ({"ratio": 1.04, "low": 1.02}, False, False, "less than the 5 % that matter"),
        ({"ratio": 1.0, "low": 0.98, "p": 0.5, "most": 1.03}, False, False, "ruled out"),
        ({"ratio": 1.0, "low": 0.8, "p": 0.5, "most": 1.3}, False, True, "undecided"),
    ],
)
def test_a_regression_is_sure_and_of_practical_size(
    change: dict[str, Any], confirmed: bool, open_: bool, told: str
) -> None:
    [found] = confirm.decide(findings(change), SETTINGS)
    assert (found.confirmed, found.open) == (confirmed, open_)
    assert told in found.why


def test_the_level_is_over_all_that_took_turns() -> None:
    assert [one.confirmed for one in confirm.decide(findings({"p": 0.002}), SETTINGS)] == [True]
    assert [one.confirmed for one in confirm.decide(findings({"p": 0.002}, {"p": 0.5}), SETTINGS)] == [False, False]


@pytest.mark.parametrize(
    ("ratio", "other", "delta", "confirmed"),
    [
        (1.5, None, 1.0, True),
        (1.5, 1.1, 1.0, False),
        (1.1, 1.5, 1.0, False),
        (1.3, None, 1.0, False),
        (1.5, 1.5, 0.1, False),
    ],
)
def test_two_nights_alone_want_both_ways_and_room(
    ratio: float, other: float | None, delta: float, confirmed: bool
) -> None:
    effect = Effect(ratio, ratio * 0.99, ratio * 1.01, delta, 1e-5, 1e-5, (10, 10))
    change = dataclasses.replace(CHANGE, effect=effect, other=other)
    found = confirm.alone(Suspect(change, "system=axonn", "2026-11-01"), SETTINGS, "no git")
    assert found.confirmed is confirmed
    assert "two nights alone decide, at 35 %: no git" in found.why


def test_turns_take_the_run_that_is_suspected_and_not_one_of_its_label() -> None:
    runs = [record([seed + 1.0], config={"seed": seed}) for seed in range(2)]
    found = samples(runs).found
    for seed in range(2):
        change = dataclasses.replace(CHANGE, config=config_key(runs[seed]))
        assert confirm._values(change, found, found) == ((seed + 1.0,), (seed + 1.0,))
