"""Interleaved rounds: no false alarms, and the smallest slowdown that is detected, on noisy machines."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from suite.regression.decide import ChangeRule, ChangeVerdict, decide_rounds, rounds_p
from suite.stats.interleaved import (
    LOOKS,
    MIN_ROUNDS,
    InterleavedResult,
    interleaved_test,
    mean_of_lowest_quarter,
    planned_rounds,
    rules_out,
)
from tests.support.nights import NoisyMachine

RULE = ChangeRule(threshold=0.05, level=0.005)
BUSY = Path(__file__).resolve().parents[2] / "nightly" / "busy.json"


def confirm(
    seed: int, slowdown: float, *, busy: bool = False, better: str = "lower"
) -> tuple[ChangeVerdict, InterleavedResult]:
    """Confirmation of one candidate, with synthetic runs in place of processes."""
    machine, planned = NoisyMachine(seed, busy=busy), planned_rounds(1, RULE.level, 12)
    sides: tuple[list[list[float]], list[list[float]]] = ([], [])
    interval = None
    for number in range(LOOKS * planned):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times = machine.run(0.05 * (1 + slowdown * side))
            sides[side].append(times if better == "lower" else [1 / value for value in times])
        if number + 1 >= MIN_ROUNDS:
            interval = interleaved_test(*sides, better)
            if rules_out(interval, RULE.threshold) or (number + 1 == planned and rounds_p(interval.p) < RULE.level):
                break
    assert interval is not None
    return decide_rounds(interval, rounds_p(interval.p), better, RULE), interval


def test_unchanged_code_and_small_slowdowns_are_no_regression() -> None:
    for slowdown, busy, seeds, same in ((0.0, False, 20, 17), (0.0, True, 4, 0), (0.02, False, 4, 2)):
        verdicts = Counter(confirm(seed, slowdown, busy=busy)[0] for seed in range(seeds))
        assert verdicts[ChangeVerdict.WORSE] == 0
        assert verdicts[ChangeVerdict.SAME] >= same


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_ten_percent_is_detected_on_drifting_machine(better: str) -> None:
    confirmations = [confirm(seed, 0.10, better=better) for seed in range(4)]
    assert {verdict for verdict, _ in confirmations} == {ChangeVerdict.WORSE}
    assert all(interval.low < interval.ratio < interval.high for _, interval in confirmations)
    assert np.median([interval.worsening(better) for _, interval in confirmations]) == pytest.approx(1.10, abs=0.02)


def test_twenty_percent_on_busy_machine_is_never_ruled_out() -> None:
    verdicts = Counter(confirm(seed, 0.20, busy=True)[0] for seed in range(3))
    assert verdicts[ChangeVerdict.WORSE] >= 1
    assert verdicts[ChangeVerdict.SAME] == 0


def test_p_value_is_calibrated_without_change() -> None:
    random = np.random.default_rng(0)
    for noise in (lambda n: random.standard_t(1, n), lambda n: random.exponential(1, n)):
        p = []
        for _ in range(50):
            old, new = (np.exp(0.1 * np.clip(noise(10), -50, 50)).reshape(10, 1).tolist() for _ in range(2))
            p.append(interleaved_test(old, new, "lower").p)
        assert np.mean(np.array(p) < 0.1) <= 0.2


def test_quiet_test_is_exact() -> None:
    """Its p-value is counted over every exchange of old and new."""
    random = np.random.default_rng(1)
    old, new = random.normal(0, 1, 5), random.normal(0.5, 1, 5)
    shift = mean_of_lowest_quarter(new) - mean_of_lowest_quarter(old)
    shifts = []
    for swap in itertools.product([False, True], repeat=5):
        a, b = np.where(swap, new, old), np.where(swap, old, new)
        shifts.append(mean_of_lowest_quarter(b) - mean_of_lowest_quarter(a))
    exact = np.mean(np.array(shifts) >= shift - 1e-12)
    interval = interleaved_test(np.exp(old)[:, None].tolist(), np.exp(new)[:, None].tolist(), "lower")
    assert interval.p <= 2 * exact + 1e-12


def test_planned_rounds_can_reach_the_level() -> None:
    for family in (1, 3, 40):
        assert 2 * LOOKS * family * 2.0 ** -planned_rounds(family, RULE.level, 4) < RULE.level
    assert planned_rounds(1, RULE.level, 12) == 12


def test_equal_rounds_show_no_change() -> None:
    interval = interleaved_test([[1.0, 1.0]] * 8, [[1.0, 1.0]] * 8, "lower")
    assert (interval.ratio, interval.p) == (1.0, 1.0)
    assert rules_out(interval, RULE.threshold)


def recorded_rounds(begin: int, count: int) -> InterleavedResult:
    """Test of recorded batch times: 96 runs of unchanged code on two cores that up to twenty other processes wanted.

    A batch takes 74 ms in a quiet moment and over a second in the busiest.
    """
    runs = [list(map(float, run)) for run in json.loads(BUSY.read_text())][begin : begin + count]
    pairs = [runs[n : n + 2][:: 1 if n % 4 == 0 else -1] for n in range(0, len(runs), 2)]
    return interleaved_test([old for old, _ in pairs], [new for _, new in pairs], "lower")


def test_recorded_unchanged_code_is_never_a_regression() -> None:
    assert all(rounds_p(recorded_rounds(begin, 24).p) >= RULE.level for begin in range(0, 73, 8))
