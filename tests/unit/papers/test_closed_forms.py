"""Closed forms that several papers share, derivatives and minima, by hand."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.memory.checkpointing import activations, checkpoint_interval
from suite.papers.axonn.closed_forms import best_interval
from suite.papers.closed_forms import equation_3, training_time
from suite.papers.finite_difference import minimum, slope
from suite.workload import Transformer
from suite.workload.flops import training
from tests.support.refusals import refused

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
    counted = training(shape, batch, recompute=True) / seconds
    assert equation_3(shape, batch, seconds) == pytest.approx(counted, rel=1e-12)


@given(st.integers(2, 400), st.integers(1, 48))
def test_the_interval_formula_is_least_at_the_root_of_the_layers(layers: int, stages: int) -> None:
    """On any number of stages, as the formula does not depend on them."""
    interval = best_interval(layers, stages)
    assert interval == pytest.approx(sqrt(layers), rel=1e-12)
    least = activations(layers, stages, Fraction(interval))
    assert float(least) == pytest.approx(2 * sqrt(layers) + 1, rel=1e-12)
    assert all(
        least <= activations(layers, stages, n) * (1 + Fraction(1, 10**12)) for n in (1, layers // 2 + 1, layers)
    )


def test_checkpoint_rule_is_not_optimal_on_a_short_stage() -> None:
    """The formula's best interval need not be legal for the rule (inconsistency A7)."""
    assert abs(checkpoint_interval(96, 48) - best_interval(96, 48)) > 7
    assert activations(96, 48, checkpoint_interval(96, 48)) > 2 * activations(96, 48, Fraction(best_interval(96, 48)))
    with refused(InvalidRequest, subject="between 1 layers", rule="at least 2 layers"):
        best_interval(1)


def test_closed_forms_by_hand() -> None:
    """96 * 5 * 4 * 3 * 64 / 2 * (1 + 4 / 48 + 10 / 384) flop/s; 16384 sequences of 512 tokens are 2^23 tokens."""
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert equation_3(shape, 5, 2.0) == pytest.approx(184320 * (1 + 4 / 48 + 10 / 384), rel=1e-12)
    assert training_time(16384, 512, 8.388608) == pytest.approx(3e5, rel=1e-12)
    assert training_time(10, 10, 2.0, tokens=1000) == 20.0


whole = st.integers(-50, 50)


@given(whole, whole, whole, st.fractions(-9, 9, max_denominator=20))
def test_the_slope_of_a_parabola_is_exact(a: int, b: int, c: int, at: Fraction) -> None:
    assert slope(lambda x: a * x * x + b * x + c, at) == 2 * a * at + b


def parabola(x: Fraction) -> Fraction:
    return (2 * x - 3) ** 2


def test_slopes_and_minima_by_hand() -> None:
    slopes: list[tuple[Callable[[Fraction], Fraction], float, float]] = [
        (lambda x: 1 / x, 4, -0.0625),
        (lambda x: x**3, 2, 12.0),
        (lambda x: x**3, 0.5, 0.75),
        (lambda x: Fraction(7), 3, 0),
    ]
    for function, at, expected in slopes:
        assert float(slope(function, at)) == expected
    for low, high in ((0, 10), (-5, 2), (0.25, 3)):
        assert abs(minimum(parabola, low, high) - Fraction(3, 2)) < Fraction(1, 10**20)
    assert float(minimum(lambda x: 2 / x + x, 1, 2)) == 2**0.5
    for low, high in ((2, 5), (-5, 1), (Fraction(3, 2), 4)):
        with refused(InvalidRequest, subject="no valley", rule="falls at the low end and rises at the high end"):
            minimum(parabola, low, high)
