"""Closed forms of the SAMO paper: bubble and messages of a pipeline, sparse flops, percent of peak.

The functions of Section IV return exact fractions, so that their derivatives can be compared with the printed ones. The
messages of a stage are counted from `needs` and `feeds`, from which executors derive communication.
"""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op, feeds, needs
from suite.core.values import Exact
from suite.workload import Transformer
from suite.workload.flops import attention, forward


def bubble(forward: Exact, backward: Exact, stages: Exact) -> Fraction:
    """Idle time of a stage per batch: both passes of `stages - 1` microbatches on one stage (SAMO Equation 6).

    Args:
        forward: Time of the forward pass of one microbatch through the whole model, in any unit.
        backward: Time of the backward pass.
        stages: Number of equal stages.
    """
    passes = (Fraction(forward) + Fraction(backward)) / Fraction(stages)
    return (Fraction(stages) - 1) * passes


def microbatches(batch: Exact, replicas: Exact, microbatch: Exact) -> Fraction:
    """Microbatches per GPU and batch: batch size over replicas and microbatch size (SAMO IV-B)."""
    return Fraction(batch) / (Fraction(replicas) * Fraction(microbatch))


def messages_per_microbatch(stage: int, stages: int) -> int:
    """Messages that a stage sends and receives per microbatch: four for an inner stage, two for both ends."""
    passes = [Op(stage, kind, 0) for kind in (Kind.FORWARD, Kind.BACKWARD)]
    received = sum(needs(op, stages) is not None for op in passes)
    sent = sum(feeds(op, stages) is not None for op in passes)
    return received + sent


def messages(*, batch: Exact, microbatch: Exact, gpus: Exact, stages: Exact) -> Fraction:
    """Messages of an inner stage in a batch, to which transmission time is proportional (SAMO Equations 9 and 10).

    `stages` may be any positive number, because the paper takes a derivative in it.
    """
    replicas = Fraction(gpus) / Fraction(stages)
    return messages_per_microbatch(1, 3) * microbatches(batch, replicas, microbatch)


def weighted(shape: Transformer, density: Exact = 1) -> Fraction:
    """Flops of the products with weights in a forward pass of one sequence, for a share `density` of non-zero weights.

    Sparse kernels such as Sputnik skip zero weights (SAMO V-C). Dense kernels, including SAMO's, do not.
    """
    return Fraction(density) * (forward(shape) - attention(shape))


def percent_of_peak(flops: float, seconds: float, peak: float) -> float:
    """100 * flops / (seconds * peak), with `peak` in flop/s of all devices together."""
    if peak <= 0 or seconds <= 0:
        raise InvalidRequest(f"a peak of {peak} flop/s and {seconds} s", rule="both are above zero")
    return 100.0 * flops / (seconds * peak)
