"""Closed forms shared by several papers: flops and training time of a GPT (AxoNN Equations 2 and 3)."""

from __future__ import annotations

from suite.workload import Transformer


def equation_3(shape: Transformer, batch: int, seconds: float) -> float:
    """Flop/s of `batch` sequences in `seconds`, including activation recomputation (AxoNN Equation 3)."""
    b, s, layers, h, v = batch, shape.sequence, shape.layers, shape.hidden, shape.vocabulary
    return 96 * b * s * layers * h**2 / seconds * (1 + s / (6 * h) + v / (16 * layers * h))


def training_time(batch: int, sequence: int, seconds: float, tokens: float = 3e11) -> float:
    """Seconds to train on `tokens` tokens at `seconds` per batch (AxoNN Equation 2)."""
    return tokens * seconds / (batch * sequence)
