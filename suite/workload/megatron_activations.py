"""Activation bytes and memory traffic of half-precision transformer kernels, per block and sequence.

The papers ran Megatron's kernels from before fused attention, which write the attention scores to memory. These scores
dominate long sequences. Flash attention writes one statistic per token and head instead. `tensor` ranks split a block
(Shoeybi et al.).
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.workload.transformer import Transformer

HALF, FULL = 2, 4  # bytes


@dataclass(frozen=True, slots=True)
class Kernels:
    """Bytes of one rank for one sequence.

    Attributes:
        kept: Bytes that a block saves for its backward pass, including its input (Korthikanti et al. 2022, Equation 2:
            s h (10 + 24 / t) + 5 a s^2 / t; with flash attention 4 a s / t in place of the last term).
        moved: Bytes that the element-wise kernels of a block's forward pass read and write. Two norms read and write
            their input (8 s h). Biases, dropout and residuals after attention and the MLP read two tensors and write
            one and a mask (14 s h). Queries, keys and values are transposed (12 s h / t). The MLP applies GELU (16 s h
            / t). Scores, where there are any, are written, scaled with softmax, and read (8 a s^2 / t).
        boundary: Output of a block, which is the message at the end of a stage.
        logits: Output of the head in half precision, and its log-probabilities in single precision.
        probabilities: Log-probabilities, which the loss saves for its backward pass.
    """

    kept: float
    moved: float
    boundary: float
    logits: float
    probabilities: float

    @classmethod
    def of(cls, shape: Transformer, tensor: int = 1, *, flash: bool = False) -> Kernels:
        s, h = shape.sequence, shape.hidden
        scores = 0.0 if flash else shape.heads * s * s / tensor
        statistics = FULL * shape.heads * s / tensor if flash else 0.0
        return cls(
            kept=s * h * (10 + 24 / tensor) + 5 * scores + statistics,
            moved=s * h * (22 + 28 / tensor) + 8 * scores,
            boundary=HALF * s * h,
            logits=(HALF + FULL) * s * shape.vocabulary / tensor,
            probabilities=FULL * s * shape.vocabulary / tensor,
        )
