"""Decides how many flops training a network takes, and what share of a peak that is.

A backward pass is two forward passes; recomputation adds one forward pass of every block (not of the head). Percent of
peak is always printed with the formula, the count and the peak that it used. The papers' own formulas are for GPTs.
"""

from __future__ import annotations

from fractions import Fraction

from suite.core.errors import Refused
from suite.core.exact import Exact
from suite.workload.shapes import Network, Transformer


def forward(shape: Network) -> int:
    """Flops of one forward pass of one sequence or image."""
    return sum(layer.flops for layer in shape.shapes())


def training(shape: Network, samples: int, *, recompute: bool = False) -> int:
    """Flops of one training batch: 3 forward passes, and with recomputation one more of the blocks."""
    again = sum(layer.flops for layer in shape.shapes() if layer.checkpointed) if recompute else 0
    return samples * (3 * forward(shape) + again)


def attention(shape: Transformer) -> int:
    """Flops of one forward pass of one sequence that meet no weight: the scores, and the values that they mix."""
    return shape.layers * 4 * shape.sequence**2 * shape.hidden


def weighted(shape: Transformer, density: Exact = 1) -> Fraction:
    """Flops of one forward pass of one sequence in products with weights, of which the share `density` is not zero.

    Sparse kernels skip the rest (Sputnik in SAMO V-C); dense ones, SAMO's among them, do not.
    """
    return Fraction(density) * (forward(shape) - attention(shape))


def equation_3(shape: Transformer, batch: int, seconds: float) -> float:
    """AxoNN Equation 3: flop/s with activation recomputation, for `batch` sequences in `seconds`."""
    b, s, layers, h, v = batch, shape.sequence, shape.layers, shape.hidden, shape.vocabulary
    return 96 * b * s * layers * h**2 / seconds * (1 + s / (6 * h) + v / (16 * layers * h))


def training_time(batch: int, sequence: int, seconds: float, tokens: float = 3e11) -> float:
    """AxoNN Equation 2: expected seconds to train on `tokens` tokens at `seconds` per batch."""
    return tokens * seconds / (batch * sequence)


def percent_of_peak(flops: float, seconds: float, peak: float) -> float:
    """100 * flops / (seconds * peak); `peak` in flop/s of all devices together."""
    if peak <= 0 or seconds <= 0:
        raise Refused(f"peak {peak} flop/s over {seconds} s", rule="both are above zero")
    return 100.0 * flops / (seconds * peak)
