"""SAMO's counted and measured claims against hand counts.

Broken engines change the verdicts of these answers in laws/test_mutations.py.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.claims import load, printed
from suite.claims.answer import Answer, Papers, Question, answer, answers_of_figure
from suite.claims.claim import Evidence
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.papers.samo import closed_forms, counts, figures, formulas
from suite.papers.samo import measured as shown
from suite.papers.samo import measured_messages as sent
from suite.papers.samo import measured_states as bytes_of
from suite.workload import Transformer
from suite.workload.flops import attention
from tests.support.published_runs import lab, published
from tests.support.refusals import refused

CLAIMS = {name: claim for name, claim in published().items() if claim.paper == "samo"}
PAPERS = Papers(CLAIMS, {}, {})
ROWS = {claim.id: row for claim, row in answers_of_figure(CLAIMS.values(), "samo_small")}


def ours(name: str, evidence: Evidence = Evidence.MEASURED, source: Any = None) -> Answer:
    (row,) = (row for row in CLAIMS[name].answers if row.evidence is evidence)
    return answer(CLAIMS[name], row, source)


# Bytes of model states


def test_bytes_of_a_rank_by_hand() -> None:
    """Two bytes of a half and four of a full number; Adam has two moments, and the index is of 32 bits.

    A SAMO step makes a half copy of the kept entries.
    """
    names = ("theta16", "grad16", "theta32", "grad32", "optimizer_state", "index", "else")
    for options, expected in (
        ((400,), (800, 800, 1600, 1600, 3200, 0, 0)),
        ((400, Fraction(1, 4)), (800, 200, 400, 400, 800, 400, 0)),
    ):
        assert bytes_of.permanent_bytes(bytes_of.small(*options)) == dict(zip(names, expected, strict=True))
    single = bytes_of.permanent_bytes(bytes_of.small(400, half=None))
    assert (sum(single.values()), single["theta16"], single["grad16"]) == (16 * 400, 0, 0)
    assert bytes_of.step_bytes(bytes_of.small(400, Fraction(1, 4))) == 2 * 100
    assert bytes_of.step_bytes(bytes_of.small(400)) == 0
    assert bytes_of.total(400, Fraction(1, 4)) == (24 * 100) + 2 * 400


MEASURED: dict[str, tuple[float, ...]] = {
    "samo.sec3b.index_width": (32,),  # 12 h^2 + 13 h weights of a block of GPT-3 175B, h = 12288, are below 2^31
    "samo.sec3.mixed_precision_overhead": (25,),
    "samo.sec3a.compressible_share": (90,),
    "samo.sec3d.default_bytes.optimizer_state": (8,),
    "samo.fig2.break_even": (0.25,),
    "samo.fig2.saving_range": (66, 78),
    "samo.fig2.monotone": (-18, 6, 36, 66, 84),
    "samo.eq10.send_time": (24, 32, 40),
    "samo.sec4b.microbatches_per_gpu": (4, 2, 3),
    "samo.sec4b.messages_per_microbatch": (2, 4, 4, 4, 2),
    "samo.sec3b.linear_index_example": (0, 3, 3 * 7 + 5, 10 * 13 + 2),
}


def test_measured_answers_by_hand() -> None:
    for name, values in MEASURED.items():
        assert ours(name).values == values, name
    assert ours("samo.eq5.saving").values[1:3] == (144_000, 300)
    for name in ("default_bytes.total", "compressed_states", "index_bytes", "theta16_bytes", "temporary_bytes"):
        claim = CLAIMS[f"samo.sec3d.{name}"]
        values = ours(claim.id).values
        assert len(values) == len(set(values)) == len(claim.points)
    pairs = ours("samo.sec3c.optimizer_identical").values
    assert len(set(pairs)) > 100  # weights, not a constant
    assert pairs[::2] == pairs[1::2]
    alive, largest = ours("samo.sec3c.layerwise_compression").values[:2]
    assert 0 < alive <= largest


# Messages and schedules


def test_messages_and_idle_time_by_hand() -> None:
    """An end of a pipeline has one neighbour, to which it sends and from which it receives, in each pass."""
    of_ranks = sent.batch(Grid(inter=3, data=2), samples=8, microbatch=2)
    assert sorted((one.stage, one.messages, one.forwards) for one in of_ranks) == [
        *[(0, 4, 2)] * 2,
        *[(1, 8, 2)] * 2,
        *[(2, 4, 2)] * 2,
    ]
    for stages, microbatches in ((1, 3), (3, 5), (2, 2), (6, 20)):
        assert counts.bubbles(stages, microbatches) == [3.0 * (stages - 1)] * stages


def test_bubbles_by_hand_in_both_orders() -> None:
    """(t_f + t_b) * (1 - 1 / G_inter) is 6, 3 and 7, and (G_inter - 1) times the passes of a stage in Figure 3.

    A forward pass of 0.375 and a backward pass of 0.625 leave gaps in the order of AxoNN.
    """
    assert ours("samo.eq7.bubble", Evidence.DERIVED).values == pytest.approx((6, 3, 7, 6, 3.125, 7))
    values = ours("samo.fig3.bubble_equals_passes", Evidence.DERIVED).values
    by_hand = [3.0 * (stages - 1) for stages in (3, 2, 4, 8) for _ in range(stages)] + [3.0] * 4
    assert values[1::2] == tuple(by_hand * 2)
    assert values[: 2 * len(by_hand) : 2] == tuple(by_hand), "1F1B"
    assert values[2 * len(by_hand) :: 2] == (*by_hand[:-4], *[3.125] * 4), "message-driven"


def test_gains_in_bubble_by_hand() -> None:
    """3 * (1 - 1 / n), minus the values for n - 1 and n / 2."""
    values = ours("samo.sec4b.diminishing_returns", Evidence.DERIVED).values
    fewer = [3 / (n * (n - 1)) for n in (2, 4, 8, 16, 32)]
    half = [3 / n for n in (2, 4, 8, 16, 32)]
    assert values == pytest.approx([*fewer, *half] * 2)


def test_flops_of_sparse_kernels_have_attention_whole() -> None:
    """One block of h = 4, s = 2: 24 s h^2 + 4 s^2 h = 768 + 64, and a head of 2 s h v = 48."""
    shape = Transformer(layers=1, hidden=4, heads=1, sequence=2, vocabulary=3)
    papers = Papers({}, {}, dict.fromkeys(formulas.GPTS, shape))
    cases, _ = formulas.sparse_flops(Question({"sparsity": 0.75}), papers)
    assert set(map(tuple, cases)) == {(Fraction(100 * ((768 + 48) // 4 + 64), 768 + 48 + 64),)}


def test_sizes_follow_the_shapes() -> None:
    shape = Transformer(layers=2, hidden=8, heads=2, sequence=4, vocabulary=11)
    name = "samo.table1.parameters.gpt3_xl"
    answered = answer(CLAIMS[name], ROWS[name], SimpleNamespace(shapes={"gpt3_xl": shape}))
    assert answered.values == (2 * (12 * 64 + 13 * 8) + (11 + 4) * 8 + 2 * 8,)
    sizes = zip(counts.GPTS, (9, 20, 50, 90), strict=True)
    shapes: Any = {name: SimpleNamespace(parameters=count * 126_886_696) for name, count in sizes}
    ratios, _ = counts.size_ratios(Question({}), SimpleNamespace(shapes=shapes))
    assert ratios == [[Fraction(9 * 126_886_696, 143_667_240), 90]]


# Printed numbers

PRINTED: dict[str, tuple[float, ...]] = {
    "axonn.fig6.batch_time_improvement": tuple(100 * (1 - t / 46.70) for t in (38.37, 38.37 + 4.32 / 2.5)),
    "axonn.fig11.order": (1, 1 / (1 - 0.1147), 1 / (1 - 0.1814)),
    "axonn.table1.nodes.100b": (64,),
    "axonn.table2.g_data_over_megatron": (8, 4, 8, 8),
    "samo.table1.gpus.vgg_19": (128 / 8, 128),
    "samo.table1.batch_per_gpu": (1, 8),
    "samo.sec1.communication_saved_share": (40,),
    "samo.abstract.speedup_over_axonn": (32,),
    "samo.sec6b.max_speedup.gpt3_2_7b": (24,),
    "samo.fig6_7.speedup_over_axonn.gpt3_13b": (100 * (1 - 39.7 / 48.8), 100 * (1 - 22.9 / 31.0)),
    "samo.sec6b.max_speedup.gpt3_13b": (100 * (1 - 22.9 / 31.0),),
    "samo.table2.smaller_drop": tuple(100 * (1 - b / a) for a, b in ((53.4, 31), (43.3, 22.9), (44.6, 20.6))),
    "samo.fig6_7.samo_over_sputnik": (53.4 / 18.9, 48.8 / 18.5, 41.1 / 16.8, 31 / 12.2),
    "samo.fig6_7.larger_over_deepspeed": (19, 10, 51, 47, 17, 10, 33, 24, 12, 11, 38, 23, 16.4, 19, 34, 26),
    "samo.sec6b.speedup_grows_with_gpus": tuple(  # the largest count first
        100 * (1 - b / a) for a, b in ((31.0, 22.9), (41.1, 32.2), (48.8, 39.7), (53.4, 43.3))
    ),
}


def test_printed_numbers_by_hand() -> None:
    known = {claim.id: claim for claim in load.claims()}
    for name, values in PRINTED.items():
        (row,) = (row for row in known[name].answers if row.printed)
        assert [value for case in printed.values(row, known) for value in case] == pytest.approx(values), name


def test_communication_is_shorter_in_relation_to_itself() -> None:
    values = ours("samo.abstract.communication_time_reduction", Evidence.SIMULATED, lab()).values
    parts = figures.phases(lab(), "axonn", 512), figures.phases(lab(), "axonn_samo", 512)
    dense, pruned = (one.point_to_point + one.bubble + one.collective for one in parts)
    assert values == pytest.approx((100 * (dense - pruned) / dense,))
    assert values[0] > ours("samo.fig8.total.gpus_512", Evidence.SIMULATED, lab()).values[0]


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


def test_counts_by_hand() -> None:
    """Dense gradients alive at once are of one layer: of a convolution and two linear layers of 96, 168 and 105."""
    assert shown.dense_gradients(1) == shown.dense_gradients(2) == (2 * 168, 2 * 168)
    forward = 2 * (16 * 24 + 24 * 7 + 7 * 15)  # a convolution of 6 x 2 x 2 outputs, and two linear layers
    assert shown.same_flops(Question({}), None) == [[4 * 3 * forward] * 2]  # 4 samples; a backward pass is two products
    assert [shown.reduced_bytes(density, 400) for density in (1.0, 0.5, 0.01)] == [800, 400, 8]
    assert shown.index_ratio(3, 7) == 3
    assert shown.indices_of([(0, 0), (1, 1)], 2) == [0, 3]
    assert shown.indices_of([(0, 2), (2, 1)], 3) == [2, 7]


def test_expanding_is_compared_with_tensors_that_are_not_all_zero() -> None:
    pairs = shown.inverse(Question({}), None)
    assert all(one == other for one, other in pairs)
    assert sum(one != 0 for one, _ in pairs) == 10 + 10 + 9
