"""Interleaved confirmation of candidate regressions."""

from __future__ import annotations

import dataclasses
from typing import Any

from suite.config import nightly
from suite.regression.decide import ChangeVerdict
from suite.regression.matching import RunName, config_key
from suite.regression.metrics import Change
from suite.regression.nightly import confirm
from suite.regression.nightly.confirm import CandidateRegression, Confirmation
from suite.stats.inference import Effect
from suite.stats.interleaved import InterleavedResult
from tests.support.nights import record, samples

SETTINGS = nightly.read([])  # threshold 5 %, level 0.005
EFFECT = Effect(1.5, 1.48, 1.52, 1.0, 1e-5, 1e-5, (10, 10))
CHANGE = Change(RunName("single", "axonn 2x1"), "batch_time", "s", "lower", 1.0, 1.5, ChangeVerdict.WORSE)
CANDIDATE = CandidateRegression(dataclasses.replace(CHANGE, effect=EFFECT), "system=axonn")
RESULT = InterleavedResult(ratio=1.1, low=1.05, high=1.2, p=0.001, rounds=12, quiet=False, max_worsening=1.2)


def confirmed(p: float, **changes: Any) -> Confirmation:
    return confirm.decide_rounds(CANDIDATE, dataclasses.replace(RESULT, **changes), p, SETTINGS)


def test_reason_holds_ratio_interval_and_p() -> None:
    confirmation = confirmed(0.002)
    assert confirmation.confirmed
    for part in ("12 rounds", "+10.0 % (+5.0 % to +20.0 %)", "p 0.002"):
        assert part in confirmation.why
    assert confirmed(0.002, ratio=1.04, low=1.02).verdict is ChangeVerdict.SAME
    assert not confirmed(0.008).confirmed


def test_rounds_use_the_candidates_config_not_its_label() -> None:
    runs = [record([seed + 1.0], config={"seed": seed}) for seed in range(2)]
    both = samples(runs).samples
    for seed in range(2):
        change = dataclasses.replace(CHANGE, config=config_key(runs[seed]))
        assert confirm.samples_of_round(change, both, both) == ((seed + 1.0,), (seed + 1.0,))
