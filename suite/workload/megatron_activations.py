"""Activation bytes and memory traffic of half-precision transformer kernels, per block and sequence.

The kernels that the papers ran on (Megatron's, before attention was fused into one kernel) write the attention scores
to memory: they are what sets a long sequence apart from a short one. `tensor` ranks split a block (Shoeybi et al.).
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.workload.transformer import Transformer

HALF, FULL = 2, 4  # bytes


@dataclass(frozen=True, slots=True)
class Kernels:
    """Bytes of one rank for one sequence.

    Attributes:
        kept: What a block keeps for its backward pass, its input among it (Korthikanti et al. 2022, Equation 2: s h (10
            + 24 / t) + 5 a s^2 / t).
        moved: Bytes that the element-wise kernels of one forward pass of a block read and write. Two norms read and
            write their input (8 s h); biases, dropout and residuals after attention and perceptron read two, write one
            and a mask (14 s h); queries, keys and values change their order (12 s h / t); the perceptron's GELU (16 s h
            / t); scores are written, scaled with softmax, and read (8 a s^2 / t).
        boundary: The output of a block, which is a message where a stage ends.
        logits: The head's output in half precision, and its log-probabilities in full.
        probabilities: The log-probabilities alone, which the loss keeps for its backward pass.
    """

    kept: float
    moved: float
    boundary: float
    logits: float
    probabilities: float

    @classmethod
    def of(cls, shape: Transformer, tensor: int = 1) -> Kernels:
        s, h = shape.sequence, shape.hidden
        scores = shape.heads * s * s / tensor
        return cls(
            kept=s * h * (10 + 24 / tensor) + 5 * scores,
            moved=s * h * (22 + 28 / tensor) + 8 * scores,
            boundary=HALF * s * h,
            logits=(HALF + FULL) * s * shape.vocabulary / tensor,
            probabilities=FULL * s * shape.vocabulary / tensor,
        )
