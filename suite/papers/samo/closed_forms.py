"""Closed forms of the SAMO paper: bubble and messages of a pipeline, sparse flops, percent of peak.

The forms of Section IV are functions in fractions, so that a slope is taken of them and compared with the printed one.
The messages of a stage are counted from `needs`, which the drivers communicate by.
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

    forward, backward: time of one microbatch through the whole model, in any unit; stages are equally long.
    """
    passes = (Fraction(forward) + Fraction(backward)) / Fraction(stages)
    return (Fraction(stages) - 1) * passes


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


def weighted(shape: Transformer, density: Exact = 1) -> Fraction:
    """Flops of one forward pass of one sequence in products with weights, of which the share `density` is not zero.

    Sparse kernels skip the rest (Sputnik in SAMO V-C); dense ones, SAMO's among them, do not.
    """
    return Fraction(density) * (forward(shape) - attention(shape))


def percent_of_peak(flops: float, seconds: float, peak: float) -> float:
    """100 * flops / (seconds * peak); `peak` in flop/s of all devices together."""
    if peak <= 0 or seconds <= 0:
        raise InvalidRequest(f"peak {peak} flop/s over {seconds} s", rule="both are above zero")
    return 100.0 * flops / (seconds * peak)
