"""Closed forms of the AxoNN paper: the best interval of checkpoints, bytes of messages and of all-reduces."""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.core.values import Exact
from suite.memory.checkpointing import activations
from suite.papers.common.finite_difference import minimum
from suite.workload import Transformer


def best_interval(layers: int, stages: int = 1) -> float:
    """The interval that makes Equation 1 least, were every interval allowed."""
    if layers < 2:
        raise InvalidRequest(f"checkpoints between {layers} layers", rule="at least 2 layers", legal="2")
    return float(minimum(lambda interval: activations(layers, stages, interval), Fraction(1, 2), layers))


def message_bytes(shape: Transformer, microbatch: int, width: int = 2) -> int:
    """Bytes of a message between two stages: the output of a block for `microbatch` sequences, `width` bytes a number.

    A backward pass sends the gradient of the same numbers.
    """
    if microbatch < 1:
        raise InvalidRequest(f"a message of {microbatch} sequences", rule="at least 1", legal="1")
    return microbatch * shape.block(width).output


def ring_bytes(size: Exact, ranks: int) -> Fraction:
    """Bytes that each of `ranks` ranks sends when a ring sums `size` bytes: 2 (n - 1) / n of them."""
    return Fraction(size) * 2 * (ranks - 1) / ranks
