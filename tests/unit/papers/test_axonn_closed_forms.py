"""AxoNN's closed forms: the best interval of checkpoints, and bytes of messages and rings.

The formula's best interval need not be legal for the rule (inconsistency A7)."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.errors import InvalidRequest
from suite.memory.checkpointing import activations, checkpoint_interval
from suite.papers.axonn.closed_forms import best_interval, message_bytes, ring_bytes
from suite.workload import Transformer
from tests.support.refusals import refused


@given(st.integers(2, 400), st.integers(1, 48))
def test_the_formula_is_least_at_the_root_of_the_layers(layers: int, stages: int) -> None:
    """On any number of stages, as the formula does not depend on them."""
    interval = best_interval(layers, stages)
    assert interval == pytest.approx(sqrt(layers), rel=1e-12)
    least = activations(layers, stages, Fraction(interval))
    assert float(least) == pytest.approx(2 * sqrt(layers) + 1, rel=1e-12)
    assert least <= min(activations(layers, stages, n) for n in range(1, layers + 1)) * (1 + Fraction(1, 10**12))


def test_one_layer_has_no_interval() -> None:
    with refused(InvalidRequest, subject="between 1 layers", rule="at least 2 layers"):
        best_interval(1)


def test_checkpoint_rule_is_not_optimal_on_a_short_stage() -> None:
    assert abs(checkpoint_interval(96, 48) - best_interval(96, 48)) > 7
    assert activations(96, 48, checkpoint_interval(96, 48)) > 2 * activations(96, 48, Fraction(best_interval(96, 48)))


def test_message_bytes_by_hand() -> None:
    """2 * s * h * mbs bytes in float16: 4.62 megabytes for AxoNN's 12 billion parameters and one sequence."""
    shape = Transformer(48, 4512, 24, sequence=512, vocabulary=51200)
    assert message_bytes(shape, 1) == 2 * 512 * 4512 == 4_620_288
    assert message_bytes(shape, 3, width=4) == 4 * 512 * 4512 * 3
    with refused(InvalidRequest, "microbatch", 0):
        message_bytes(shape, 0)


def test_a_ring_sends_all_but_a_share_twice() -> None:
    assert ring_bytes(800, 1) == 0
    assert ring_bytes(800, 2) == 800
    assert ring_bytes(800, 8) == 1400
