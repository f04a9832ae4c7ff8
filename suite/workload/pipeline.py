"""Decides what a pipeline costs on paper: bubble, messages and all-reduce (SAMO Section IV, AxoNN Section V-B).

The papers derive their orders from these closed forms, so they are functions here, in fractions, and the forms in the
papers are what they are compared with. How many messages a stage has is counted from `needs`, which is also what the
drivers communicate by.
"""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import Refused
from suite.core.exact import Exact
from suite.core.op import Kind, Op, feeds, needs
from suite.workload.shapes import Transformer


def bubble(forward: Exact, backward: Exact, stages: Exact) -> Fraction:
    """Idle time of a stage per batch: both passes of `stages - 1` microbatches on one stage (SAMO Equation 6).

    forward, backward: time of one microbatch through the whole model, in any unit; stages are equally long.
    """
    own = (Fraction(forward) + Fraction(backward)) / Fraction(stages)
    return (Fraction(stages) - 1) * own


def microbatches(batch: Exact, replicas: Exact, microbatch: Exact) -> Fraction:
    """Microbatches that each GPU computes in a batch (SAMO IV-B): the batch over replicas and microbatch size."""
    return Fraction(batch) / (Fraction(replicas) * Fraction(microbatch))


def messages_per_microbatch(stage: int, stages: int) -> int:
    """Messages that a stage sends and receives for one microbatch: four inside a pipeline, two at its ends."""
    passes = [Op(stage, kind, 0) for kind in (Kind.FORWARD, Kind.BACKWARD)]
    received = sum(needs(op, stages) is not None for op in passes)
    sent = sum(feeds(op, stages) is not None for op in passes)
    return received + sent


def messages(*, batch: Exact, microbatch: Exact, gpus: Exact, stages: Exact) -> Fraction:
    """Messages of an interior stage in a batch: what SAMO Equations 9 and 10 hold the transmission time
    proportional to. `stages` may be any number above zero: the papers take a derivative along it."""
    replicas = Fraction(gpus) / Fraction(stages)
    return messages_per_microbatch(1, 3) * microbatches(batch, replicas, microbatch)


def message_bytes(shape: Transformer, microbatch: int, width: int = 2) -> int:
    """Bytes of a message between two stages: the output of a block for `microbatch` sequences, `width` bytes a number.

    A backward pass sends the gradient of the same numbers.
    """
    if microbatch < 1:
        raise Refused(f"a message of {microbatch} sequences", rule="at least 1", legal="1")
    return microbatch * shape.block(width).output


def ring_bytes(size: Exact, ranks: int) -> Fraction:
    """Bytes that each of `ranks` ranks sends when a ring sums `size` bytes: 2 (n - 1) / n of them."""
    return Fraction(size) * 2 * (ranks - 1) / ranks
