"""Flops of training a network.

A backward pass counts as two forward passes. Recomputation adds one forward pass of every block, but not of the head.
"""

from __future__ import annotations

from suite.workload.transformer import Network, Transformer


def forward(shape: Network) -> int:
    """Flops of one forward pass of one sequence or image."""
    return sum(layer.flops for layer in shape.shapes())


def training(shape: Network, samples: int, *, recompute: bool = False) -> int:
    """Flops of one training batch: three forward passes, and one more of the blocks with recomputation."""
    again = sum(layer.flops for layer in shape.shapes() if layer.checkpointed) if recompute else 0
    return samples * (3 * forward(shape) + again)


def attention(shape: Transformer) -> int:
    """Flops of attention without weights in one forward pass of one sequence: scores, and the product with values."""
    return shape.layers * 4 * shape.sequence**2 * shape.hidden
