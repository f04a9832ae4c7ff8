"""Activation checkpoints: AxoNN's Equation 1, and its rule for the interval."""

from __future__ import annotations

from fractions import Fraction

import pytest

from suite.core.errors import InvalidRequest
from suite.memory.checkpointing import activations, checkpoint_interval, resolve_interval


def test_activations_by_hand() -> None:
    """8 layers a stage, every 4th kept: 2 checkpoints of 6 microbatches, a segment's input, and its 4 layers."""
    assert activations(48, 6, 4) == 6 * 2 + 1 + 4
    assert activations(48, 1, 48) == 1 + 1 + 48
    assert activations(50, 5, Fraction(7, 2)) == Fraction(50 * 2, 7) + 1 + Fraction(7, 2)


def test_the_rule_takes_the_factor_closest_to_the_root() -> None:
    for layers, stages, interval in (
        (48, 6, 8),  # Table II, 12 billion: of 1 2 4 8 the closest to 6.93
        (48, 12, 4),
        (96, 24, 4),
        (96, 48, 2),
        (48, 2, 6),  # 6 and 8 are both factors of 24; 6.93 is closer to 6
        (96, 4, 8),  # 8 and 12 of 24, 9.80
        (90, 3, 10),  # 6 and 10 of 30, 9.49
        (36, 1, 6),  # the root itself
        (144, 9, 16),  # 8 and 16 are equally close to 12: 27 activations with 8, 26 with 16
        (7, 7, 1),
    ):
        assert checkpoint_interval(layers, stages) == interval, (layers, stages)
    for stages, legal in ((5, "4 stages"), (49, "48 stages"), (0, "1 stage")):
        with pytest.raises(InvalidRequest) as caught:
            checkpoint_interval(48, stages)
        assert caught.value.legal == legal


def test_setting_resolves_to_an_interval() -> None:
    cases: list[tuple[int | str | None, list[int], int | None]] = [
        (None, [3, 4], None),
        ("auto", [8] * 6, 8),
        ("auto", [2] * 24, 2),
        (1, [5, 3], 1),
        (4, [8] * 6, 4),
        (2, [6, 2, 0], 2),
    ]
    for setting, stages, interval in cases:
        assert resolve_interval(setting, stages) == interval, (setting, stages)
