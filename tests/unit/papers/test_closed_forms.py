"""AxoNN Equations 2 and 3: by hand, and next to the count over layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.papers.common.closed_forms import equation_3, training_time
from suite.workload import Transformer
from suite.workload.flops import training

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


def test_equation_3_by_hand() -> None:
    """96 * 5 * 4 * 3 * 64 / 2 * (1 + 4 / 48 + 10 / 384)"""
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert equation_3(shape, 5, 2.0) == pytest.approx(184320 * (1 + 4 / 48 + 10 / 384), rel=1e-12)


def test_training_time_is_equation_2() -> None:
    """T = 3e11 t / (b s): 16384 sequences of 512 tokens are 2^23 tokens; at 8.388608 s each that is 3e5 s."""
    assert training_time(16384, 512, 8.388608) == pytest.approx(3e5, rel=1e-12)
    assert training_time(10, 10, 2.0, tokens=1000) == 20.0
