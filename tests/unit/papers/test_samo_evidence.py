"""SAMO's counted and measured claims against hand counts.

Broken engines change the verdicts of these answers in laws/test_mutations.py.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from suite.claims.answer import Papers, Question
from suite.core.errors import InvalidRequest
from suite.papers.samo import closed_forms, formulas
from suite.papers.samo import measured as shown
from suite.workload import Transformer
from suite.workload.flops import attention
from tests.support.refusals import refused

# Messages and schedules


def test_flops_of_sparse_kernels_have_attention_whole() -> None:
    """One block of h = 4, s = 2: 24 s h^2 + 4 s^2 h = 768 + 64, and a head of 2 s h v = 48."""
    shape = Transformer(layers=1, hidden=4, heads=1, sequence=2, vocabulary=3)
    papers = Papers({}, {}, dict.fromkeys(formulas.GPTS, shape))
    cases, _ = formulas.sparse_flops(Question({"sparsity": 0.75}), papers)
    assert set(map(tuple, cases)) == {(Fraction(100 * ((768 + 48) // 4 + 64), 768 + 48 + 64),)}


# -- closed forms of a pipeline


def test_closed_forms_by_hand() -> None:
    """SAMO Figure 3: three stages, a forward of 1 and a backward of 2 ticks on each: 6 ticks idle.

    Equation 10 sends 4 * B / mbs * G_inter / G messages. Scores and values are 4 * 16 * 8 = 512 flops a block, and
    half the weights halve the rest. 48 V100s of 125 Tflop/s: 12e15 flops in 4 s are half of their 6e15 flop/s.
    """
    assert closed_forms.bubble(3, 6, 3) == 6
    assert closed_forms.bubble(1, 2, 1) == 0
    assert closed_forms.bubble(Fraction(1, 2), 0.25, 4) == Fraction(9, 16)
    assert closed_forms.microbatches(2048, 8, 1) == 256
    assert closed_forms.microbatches(512, 64, 16) == Fraction(1, 2)
    assert closed_forms.messages(batch=2048, microbatch=2, gpus=48, stages=6) == 4 * 1024 * Fraction(6, 48)
    assert closed_forms.messages(batch=2048, microbatch=2, gpus=48, stages=Fraction(1, 2)) == 4 * 1024 * Fraction(1, 96)
    shape = Transformer(3, 8, 2, sequence=4, vocabulary=10)
    assert attention(shape) == 3 * 512
    assert closed_forms.weighted(shape) == 20608 - 1536 == 2 * 4 * (3 * 12 * 64 + 8 * 10)
    assert (closed_forms.weighted(shape, Fraction(1, 2)), closed_forms.weighted(shape, 0)) == (9536, 0)
    assert closed_forms.percent_of_peak(12e15, 4.0, 48 * 125e12) == pytest.approx(50.0, rel=1e-12)
    for seconds, peak in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with refused(InvalidRequest, rule="above zero"):
            closed_forms.percent_of_peak(1.0, seconds, peak)


# -- samo's answers in a small network: each count detects a planted change


def test_both_trainings_move_and_are_the_same() -> None:
    before, (dense, samo) = shown.twins(batches=0), shown.twins()
    for number, (begun, first, second) in enumerate(
        zip(
            before[1].state.model_states.parameters,
            dense.state.model_states.parameters,
            samo.state.model_states.parameters,
            strict=True,
        )
    ):
        assert torch.equal(first, second), number
        assert not torch.equal(begun, second), number
    for answer_of in (shown.optimizer, shown.forward):
        assert all(one == other for one, other in answer_of(Question({}), None))
