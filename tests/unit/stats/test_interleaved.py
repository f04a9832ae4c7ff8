"""Interleaved rounds: no false alarms, and the smallest slowdown that is detected, on noisy machines."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from suite.regression.decide import MIN_ROUNDS, ChangeRule, ChangeVerdict, decide_rounds, planned_rounds, rules_out
from suite.stats.inference import Effect, interleaved_effect
from tests.support.nights import NoisyMachine

RULE = ChangeRule(threshold=0.05, level=0.005)
BUSY = Path(__file__).resolve().parents[2] / "nightly" / "busy.json"


def confirm(seed: int, slowdown: float, *, busy: bool = False, better: str = "lower") -> tuple[ChangeVerdict, Effect]:
    """Confirmation of one candidate, with synthetic runs in place of processes."""
    machine = NoisyMachine(seed, busy=busy)
    sides: tuple[list[list[float]], list[list[float]]] = ([], [])
    for number in range(planned_rounds(1, RULE.level, 12)):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times = machine.run(0.05 * (1 + slowdown * side))
            sides[side].append(times if better == "lower" else [1 / value for value in times])
        effect = interleaved_effect(*sides, better)
        if rules_out(effect, better, RULE):
            break
    return decide_rounds(effect, effect.p, better, RULE), effect


def test_unchanged_code_and_small_slowdowns_are_no_regression() -> None:
    for slowdown, busy, seeds, same in ((0.0, False, 20, 12), (0.0, True, 4, 0), (0.02, False, 4, 1)):
        verdicts = Counter(confirm(seed, slowdown, busy=busy)[0] for seed in range(seeds))
        assert verdicts[ChangeVerdict.WORSE] == 0
        assert verdicts[ChangeVerdict.SAME] >= same


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_ten_percent_is_detected_on_drifting_machine(better: str) -> None:
    confirmations = [confirm(seed, 0.10, better=better) for seed in range(4)]
    assert {verdict for verdict, _ in confirmations} == {ChangeVerdict.WORSE}
    assert all(effect.low < effect.ratio < effect.high for _, effect in confirmations)
    ratio = float(np.median([effect.ratio for _, effect in confirmations]))
    assert (ratio if better == "lower" else 1 / ratio) == pytest.approx(1.10, abs=0.02)


def test_twenty_percent_on_busy_machine_is_never_ruled_out() -> None:
    assert ChangeVerdict.SAME not in {confirm(seed, 0.20, busy=True)[0] for seed in range(3)}


def test_p_value_is_calibrated_without_change() -> None:
    random = np.random.default_rng(0)
    for noise in (lambda n: random.standard_t(1, n), lambda n: random.exponential(1, n)):
        p = []
        for _ in range(50):
            old, new = (np.exp(0.1 * np.clip(noise(10), -50, 50)).reshape(10, 1).tolist() for _ in range(2))
            p.append(interleaved_effect(old, new, "lower").p)
        assert np.mean(np.array(p) < 0.1) <= 0.2


def test_planned_rounds_can_reach_the_level() -> None:
    for family in (1, 3, 40):
        assert family * 2.0 ** -planned_rounds(family, RULE.level, 4) < RULE.level
    assert planned_rounds(0, RULE.level, 12) == 12


def test_equal_rounds_show_no_change() -> None:
    effect = interleaved_effect([[1.0, 1.0]] * MIN_ROUNDS, [[1.0, 1.0]] * MIN_ROUNDS, "lower")
    assert (effect.ratio, effect.p) == (1.0, 1.0)
    assert rules_out(effect, "lower", RULE)


def test_recorded_unchanged_code_is_never_a_regression() -> None:
    """Batch times of 96 runs of unchanged code on two cores that up to twenty other processes wanted."""
    runs = json.loads(BUSY.read_text())
    for begin in range(0, 73, 8):
        pairs = [runs[n : n + 2][:: 1 if n % 4 == 0 else -1] for n in range(begin, begin + 24, 2)]
        assert interleaved_effect(*map(list, zip(*pairs, strict=True)), "lower").p >= RULE.level
