"""Closed forms of the AxoNN paper: best checkpoint interval, bytes of messages and all-reduces."""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.core.values import Exact
from suite.memory.checkpointing import activations
from suite.papers.finite_difference import minimum
from suite.workload import Transformer


def best_interval(layers: int, stages: int = 1) -> float:
    """Checkpoint interval at the minimum of Equation 1, if every real interval is allowed."""
    if layers < 2:
        raise InvalidRequest(f"checkpoints between {layers} layers", rule="at least 2 layers", legal="2")
    return float(minimum(lambda interval: activations(layers, stages, interval), Fraction(1, 2), layers))


def message_bytes(shape: Transformer, microbatch: int, width: int = 2) -> int:
    """Bytes of a message between two stages: the output of a block for `microbatch` sequences.

    A backward pass sends as many bytes.

    Args:
        shape: Shape of the network.
        microbatch: Sequences per microbatch.
        width: Bytes per number.
    """
    if microbatch < 1:
        raise InvalidRequest("microbatch", microbatch, rule="at least 1 sequence", legal="1")
    return microbatch * shape.block(width).output


def ring_bytes(size: Exact, ranks: int) -> Fraction:
    """Bytes that each of `ranks` ranks sends in a ring all-reduce of `size` bytes: 2 (n - 1) / n * size."""
    return Fraction(size) * 2 * (ranks - 1) / ranks
