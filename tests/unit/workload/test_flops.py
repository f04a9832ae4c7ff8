"""Decides whether flops, training time and percent of peak are the papers' formulas.

Two ways to the same count, AxoNN Equation 3 and the sum over layers, hold each other up.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import Refused
from suite.workload import Transformer
from suite.workload.flops import attention, equation_3, forward, percent_of_peak, training, training_time, weighted

shapes = st.builds(
    lambda layers, heads, width, sequence, vocabulary: Transformer(
        layers, heads * width, heads, sequence=sequence, vocabulary=vocabulary
    ),
    st.integers(1, 96),
    st.integers(1, 60),
    st.integers(1, 160),
    st.integers(1, 2048),
    st.integers(1, 60000),
)


@given(shapes, st.integers(1, 16384), st.floats(1e-3, 1e3))
def test_equation_3_is_the_count_over_layers(shape: Transformer, batch: int, seconds: float) -> None:
    assert equation_3(shape, batch, seconds) == pytest.approx(
        training(shape, batch, recompute=True) / seconds, rel=1e-12
    )


def test_a_model_by_hand() -> None:
    """s = 4, h = 8, v = 10, 3 layers. Block: 24 * 4 * 64 + 4 * 16 * 8 = 6656; head: 2 * 4 * 8 * 10 = 640."""
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert forward(shape) == 3 * 6656 + 640 == 20608
    assert training(shape, 5) == 5 * 3 * 20608
    assert training(shape, 5, recompute=True) == 5 * (3 * 20608 + 3 * 6656)
    # 96 * 5 * 4 * 3 * 64 / 2 * (1 + 4 / 48 + 10 / 384)
    assert equation_3(shape, 5, 2.0) == pytest.approx(184320 * (1 + 4 / 48 + 10 / 384), rel=1e-12)


def test_products_with_weights_by_hand() -> None:
    """The same model: scores and values are 4 * 16 * 8 = 512 flops a block; half the weights halve the rest."""
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert attention(shape) == 3 * 512
    assert weighted(shape) == 20608 - 1536 == 2 * 4 * (3 * 12 * 64 + 8 * 10)
    assert weighted(shape, Fraction(1, 2)) == 9536
    assert weighted(shape, 0) == 0


def test_training_time_is_equation_2() -> None:
    """T = 3e11 t / (b s): 16384 sequences of 512 tokens are 2^23 tokens; at 8.388608 s each that is 3e5 s."""
    assert training_time(16384, 512, 8.388608) == pytest.approx(3e5, rel=1e-12)
    assert training_time(10, 10, 2.0, tokens=1000) == 20.0


def test_percent_of_peak_by_hand() -> None:
    """48 V100s of 125 Tflop/s: 6e15 flop/s. 12e15 flops in 4 s are half of that."""
    assert percent_of_peak(12e15, 4.0, 48 * 125e12) == pytest.approx(50.0, rel=1e-12)


@pytest.mark.parametrize(("seconds", "peak"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)])
def test_no_peak_and_no_time_are_refused(seconds: float, peak: float) -> None:
    with pytest.raises(Refused, match="above zero"):
        percent_of_peak(1.0, seconds, peak)
