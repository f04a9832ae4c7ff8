"""Flops of training a network.

A backward pass counts as two forward passes. Recomputation adds one forward pass of every block, but not of the head.
"""

from __future__ import annotations

from suite.workload.transformer import DecoderOnly, Network, Transformer


def forward(shape: Network) -> int:
    """Flops of one forward pass of one sequence or image."""
    return sum(layer.flops for layer in shape.shapes())


def training(shape: Network, samples: int, *, recompute: bool = False) -> int:
    """Flops of one training batch: three forward passes, and one more of the blocks with recomputation."""
    again = sum(layer.flops for layer in shape.shapes() if layer.checkpointed) if recompute else 0
    return samples * (3 * forward(shape) + again)


def six_nd(shape: Transformer, samples: int) -> int:
    """Flops of one training batch as 6 N D: 6 per parameter (a tied matrix once) and token, without attention."""
    return 6 * shape.parameters * samples * shape.sequence


def attention(shape: Transformer) -> int:
    """Flops of attention without weights in one forward pass of one sequence: scores, and the product with values."""
    return shape.layers * 4 * shape.sequence**2 * shape.hidden


def per_trained_token(shape: DecoderOnly) -> float:
    """Flops of training per token by the usual formula 6 N + 12 l h s (PaLM, arXiv 2204.02311, Appendix B).

    N counts every parameter with all embeddings, and attention counts in full, without a causal mask.
    """
    return 6.0 * shape.parameters + 12.0 * shape.layers * shape.hidden * shape.sequence


def counted_in(shape: Network) -> tuple[str, int]:
    """Unit of throughput and its count per sample: ("token", 512) for a GPT of that sequence length, ("image", 1)."""
    return ("image", 1) if shape.tokens is None else ("token", shape.tokens)
