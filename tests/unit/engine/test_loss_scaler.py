"""Loss scale: decrease, increase and limit."""

from __future__ import annotations

import pytest

from suite import DynamicLossScaler
from suite.core.errors import Diverged
from suite.engine.optim.loss_scaler import STUCK, unscaled


def test_scale_halves_at_overflow_and_doubles_after_patience() -> None:
    scaler = DynamicLossScaler(start=16.0, patience=3)
    seen = []
    for overflow in (False, False, True, False, False, False, False):
        scaler.observe(overflow)
        seen.append(scaler.scale)
    assert seen == [16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0]
    assert scaler.clean == 1


def test_repeated_overflow_at_smallest_scale_raises_diverged() -> None:
    """AxoNN's public code would skip every batch without an error."""
    scaler = unscaled()
    for _ in range(STUCK - 1):
        scaler.observe(True)
    scaler.observe(False)
    for _ in range(STUCK - 1):
        scaler.observe(True)
    with pytest.raises(Diverged, match=f"{STUCK} batches in a row overflow at a loss scale of 1.0"):
        scaler.observe(True)
