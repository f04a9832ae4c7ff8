"""Memory and traffic of a transformer block against published formulas."""

from __future__ import annotations

import pytest

from suite.workload import Transformer
from suite.workload.megatron_activations import Kernels

TINY = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=16)  # s h = 32, a s^2 = 32


def test_a_small_block_by_hand() -> None:
    """Kept: 34 s h + 5 a s^2. Moved: 8 + 14 + 12 + 16 s h and 8 a s^2. Six bytes for each of 4 x 16 logits."""
    assert Kernels.of(TINY) == Kernels(
        kept=34 * 32 + 5 * 32, moved=50 * 32 + 8 * 32, boundary=2 * 32, logits=6 * 64, probabilities=4 * 64
    )


def test_a_split_block_keeps_norms_and_residuals_whole() -> None:
    """Two ranks: 10 s h of the saved and 22 s h of the moved bytes are on both."""
    assert Kernels.of(TINY, 2) == Kernels(
        kept=10 * 32 + 12 * 32 + 5 * 16,
        moved=22 * 32 + 14 * 32 + 8 * 16,
        boundary=2 * 32,
        logits=6 * 32,
        probabilities=4 * 32,
    )


@pytest.mark.parametrize(
    ("shape", "tensor", "units"),
    [  # Korthikanti et al. 2022, Equations 1 and 2, in units of s b h: 34 + 5 a s / h, and 10 + (24 + 5 a s / h) / t
        (Transformer(96, 12288, 96, sequence=2048, vocabulary=51200), 1, 34 + 80),
        (Transformer(96, 12288, 96, sequence=2048, vocabulary=51200), 8, 10 + (24 + 80) / 8),
        (Transformer(105, 20480, 128, sequence=2048, vocabulary=51200), 8, 10 + (24 + 64) / 8),
    ],
)
def test_kept_activations_of_published_models(shape: Transformer, tensor: int, units: float) -> None:
    assert Kernels.of(shape, tensor).kept == pytest.approx(units * shape.sequence * shape.hidden, rel=1e-12)


@pytest.mark.parametrize("heads", [2, 8])
def test_scores_grow_with_the_square_of_the_sequence(heads: int) -> None:
    """They are what sets a long sequence apart: everything else doubles with it."""
    short, long = (Kernels.of(Transformer(4, 64, heads, sequence=s, vocabulary=16)) for s in (128, 256))
    assert long.kept - 2 * short.kept == 5 * heads * (256**2 - 2 * 128**2)
    assert long.moved - 2 * short.moved == 8 * heads * (256**2 - 2 * 128**2)
    assert (long.boundary, long.logits) == (2 * short.boundary, 2 * short.logits)


def test_a_boundary_is_a_message() -> None:
    assert Kernels.of(TINY).boundary == TINY.block(2).output
    assert Kernels.of(TINY, 2).boundary == TINY.block(2).output
