"""Flops of training, counted by hand."""

from __future__ import annotations

from suite.workload import Transformer
from suite.workload.flops import attention, forward, training


def test_a_model_by_hand() -> None:
    """s = 4, h = 8, v = 10, 3 layers. Block: 24 * 4 * 64 + 4 * 16 * 8 = 6656; head: 2 * 4 * 8 * 10 = 640."""
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert forward(shape) == 3 * 6656 + 640 == 20608
    assert training(shape, 5) == 5 * 3 * 20608
    assert training(shape, 5, recompute=True) == 5 * (3 * 20608 + 3 * 6656)
    assert attention(shape) == 3 * 512  # scores and values: 4 * 16 * 8 = 512 a block
