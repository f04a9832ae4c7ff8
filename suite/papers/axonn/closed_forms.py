"""Closed form of the AxoNN paper: best checkpoint interval."""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.memory.checkpointing import activations
from suite.papers.finite_difference import minimum


def best_interval(layers: int, stages: int = 1) -> float:
    """Checkpoint interval at the minimum of Equation 1, if every real interval is allowed."""
    if layers < 2:
        raise InvalidRequest(f"checkpoints between {layers} layers", rule="at least 2 layers", legal="2")
    return float(minimum(lambda interval: activations(layers, stages, interval), Fraction(1, 2), layers))
