"""Turns of old and new code: never a false alarm worth the name, and a tenth is found, on machines of many kinds."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from suite.regression.compare import rounds
from suite.regression.compare.rounds import LOOKS, RoundsResult, cleared, lowest, planned, turned
from tests.support.nights import Shaky

LEVEL, THRESHOLD = 0.005, 0.05


def taken(seed: int, slower: float, *, busy: bool = False, better: str = "lower") -> tuple[str, RoundsResult]:
    """Confirmation of one candidate regression, with synthetic runs in place of processes."""
    machine, count = Shaky(seed, busy=busy), planned(1, LEVEL, 12)
    old: list[list[float]] = []
    new: list[list[float]] = []
    found = None
    for turn in range(LOOKS * count):
        sides = {}
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            times = machine.run(0.05 * (1 + slower * side))
            sides[side] = times if better == "lower" else [1 / value for value in times]
        old.append(sides[0])
        new.append(sides[1])
        if turn + 1 >= rounds.FEWEST:
            found = turned(old, new, better)
            if cleared(found, THRESHOLD):
                return "ruled out", found
            if turn + 1 == count and LOOKS * found.p < LEVEL:
                break
    assert found is not None
    sure = LOOKS * found.p < LEVEL and found.sure(better)
    return "found" if sure and found.worse(better) >= 1 + THRESHOLD else "small" if sure else "undecided", found


def test_unchanged_code_is_never_blamed_on_a_drifting_machine() -> None:
    counts = Counter(taken(seed, 0.0)[0] for seed in range(40))
    assert counts["found"] == 0
    assert counts["ruled out"] >= 36  # and soon, so that a night is short


def test_unchanged_code_is_never_blamed_where_neighbours_take_the_cores() -> None:
    assert "found" not in {taken(seed, 0.0, busy=True)[0] for seed in range(12)}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_tenth_is_found_on_a_drifting_machine(better: str) -> None:
    found = [taken(seed, 0.10, better=better) for seed in range(8)]
    assert [verdict for verdict, _ in found] == ["found"] * 8
    assert all(one.low < one.ratio < one.high for _, one in found)
    ratios = [one.worse(better) for _, one in found]
    assert np.median(ratios) == pytest.approx(1.10, abs=0.02)


def test_where_neighbours_take_the_cores_a_fifth_is_found_or_undecided() -> None:
    """Never ruled out: a night that could not see is no measure for others."""
    counts = Counter(taken(seed, 0.20, busy=True)[0] for seed in range(6))
    assert counts["found"] >= 3
    assert counts["ruled out"] == counts["small"] == 0


def test_what_does_not_matter_is_called_small_or_ruled_out() -> None:
    counts = Counter(taken(seed, 0.02)[0] for seed in range(8))
    assert counts["found"] == 0
    assert counts["small"] + counts["ruled out"] >= 6


def test_p_is_what_it_says_without_any_change() -> None:
    """Over many seeds no more than that share of p are below a level, for noise of any shape."""
    random = np.random.default_rng(0)
    for noise in (random.standard_normal, lambda n: random.standard_t(1, n), lambda n: random.exponential(1, n)):
        p = []
        for _ in range(100):
            old, new = (np.exp(0.1 * np.clip(noise(10), -50, 50)).reshape(10, 1).tolist() for _ in range(2))
            p.append(turned(old, new, "lower").p)
        assert np.mean(np.array(p) < 0.1) <= 0.18


def test_the_quiet_view_is_an_exact_test() -> None:
    """Every exchange of labels gone through by hand."""
    random = np.random.default_rng(1)
    old, new = random.normal(0, 1, 5), random.normal(0.5, 1, 5)
    shift = lowest(new) - lowest(old)
    dealt = []
    for swap in itertools.product([False, True], repeat=5):
        a, b = np.where(swap, new, old), np.where(swap, old, new)
        dealt.append(lowest(b) - lowest(a))
    exact = np.mean(np.array(dealt) >= shift - 1e-12)
    found = turned(np.exp(old)[:, None].tolist(), np.exp(new)[:, None].tolist(), "lower")
    assert found.p <= 2 * exact + 1e-12
    assert rounds._swaps(5, np.random.default_rng(0)).shape == (32, 5)


def test_as_many_turns_are_planned_as_the_rarest_order_needs() -> None:
    for family in (1, 3, 40):
        count = planned(family, LEVEL, 4)
        assert 2 * LOOKS * family * 2.0**-count < LEVEL
    assert planned(1, LEVEL, 12) == 12


def test_equal_turns_show_nothing() -> None:
    found = turned([[1.0, 1.0]] * 8, [[1.0, 1.0]] * 8, "lower")
    assert (found.ratio, found.p) == (1.0, 1.0)
    assert cleared(found, THRESHOLD)


def recorded() -> list[list[float]]:
    """Batch times of 96 runs of unchanged code, one after the other on two cores that up to twenty other processes
    wanted: 74 ms in a quiet moment, over a second in the busiest."""
    file = Path(__file__).resolve().parents[3] / "nightly" / "busy.json"
    return [list(map(float, run)) for run in json.loads(file.read_text())]


def dealt(runs: list[list[float]], slower: float) -> RoundsResult:
    """Those runs as turns of old and new code, as confirm orders them."""
    pairs = [runs[n : n + 2][:: 1 if n % 4 == 0 else -1] for n in range(0, len(runs), 2)]
    return turned([old for old, _ in pairs], [[(1 + slower) * v for v in new] for _, new in pairs], "lower")


def test_recorded_runs_of_unchanged_code_are_never_blamed() -> None:
    runs = recorded()
    for begin in range(0, len(runs) - 23, 4):
        found = dealt(runs[begin : begin + 24], 0.0)
        assert LOOKS * found.p >= LEVEL


def test_half_again_as_slow_shows_among_recorded_runs() -> None:
    """A fifth does in one of four, a tenth in none of them: on such a machine a night is undecided."""
    runs = recorded()
    for begin in range(0, len(runs) - 47, 16):
        found = dealt(runs[begin : begin + 48], 0.5)
        assert LOOKS * found.p < LEVEL
        assert 1.3 < found.ratio < 1.9
        assert found.sure("lower")
