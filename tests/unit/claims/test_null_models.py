"""Null models of simulated numbers, by hand from plans, flops and rows sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from suite.claims import load
from suite.claims.answer import Question, answer, function_of
from suite.claims.claim import MODELLED, AnswerRow, Claim
from suite.claims.cluster_runs import ClusterBatch, Lab
from suite.papers.closed_forms import equation_3
from suite.papers.sparse_gnn import figures as sparse_gnn
from suite.papers.sparse_gnn import grids
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, GVB
from suite.simulate.block_model import SimulationPlan
from suite.simulate.worker import Simulation
from tests.support.published_runs import lab

# a search for plans has no null model, and of these two one quantity is printed as a bound and one was fitted alone
WITHOUT = {"axonn_table2", "sparse_gnn.fig3.reddit_below_one_second", "axonn.sec5c.allreduce_over_optimizer"}


class Instant(Lab):
    """Plans as published, of which each batch takes a second: a null model does not depend on a simulated time."""

    def batch(self, plan: SimulationPlan, *, traced: bool = False) -> ClusterBatch:
        return ClusterBatch(plan, 1.0, 1.0, 1.0, 1.0, Simulation(2, [], [], [], [], [], trace=[]))


@cache
def instant() -> Instant:
    samo = lab("samo_clusters")
    return Instant(samo.machine, samo.efficiencies, samo.systems, samo.shapes)


@cache
def modelled() -> dict[str, tuple[Claim, AnswerRow]]:
    """Claims with a simulated or emulated answer by a function."""
    return {
        claim.id: (claim, row)
        for claim in load.claims()
        for row in claim.answers
        if row.evidence in MODELLED and row.function
    }


def null(name: str, source: Any) -> tuple[float, ...]:
    claim, row = modelled()[name]
    return answer(claim, row, source).null


# AxoNN: microbatches and stages from Table II with a batch of 16384, and from Section V with 2048

AXONN = (256 / 261, 512 / 523, 512 / 535, 1024 / 1071)  # the share that is not bubble: 12B, 24B, 50B, 100B
DEEPSPEED = (1024 / 1025, 1024 / 1027, 4096 / 4111, 4096 / 4127)
PERCENTS = (
    tuple(54.78 * share / AXONN[0] for share in AXONN),
    tuple(42 * share / DEEPSPEED[0] for share in DEEPSPEED),
)


AXONN_BY_HAND: dict[str, Sequence[float]] = {
    "axonn.abstract.percent_of_peak": PERCENTS[0],
    "axonn.fig9.percent_of_peak.axonn": (54, 54, 53, 53),  # cut, as printed
    "axonn.fig9.percent_of_peak.deepspeed_3d": PERCENTS[1],
    "axonn.abstract.speedup": tuple(100 * (1 - b / a) for a, b in zip(*PERCENTS, strict=True)),
    "axonn.fig9.speedup_deepspeed.100b": (PERCENTS[0][3] / PERCENTS[1][3],),
    # 384 GPUs, a batch of 32768: 64 microbatches of 8 on 6 stages, 256 of 2 on 2
    "axonn.fig11.gain_over_deepspeed": (100 * (1 - 42 * (256 / 257) / DEEPSPEED[0] / (54.78 * (64 / 69) / AXONN[0])),),
    "axonn.fig6.pipeline_time.before": (46.08,),
    "axonn.fig6.pipeline_time.after": (46.08 * (1024 / 1047) / (256 / 261),),
    "axonn.fig6.batch_time_improvement": (100 * (1 - (1024 / 1047) / (256 / 261)),),
    "axonn.fig6.data_parallel_time.after": (4.32,),
}


def test_axonns_null_models() -> None:
    for name, expected in AXONN_BY_HAND.items():
        assert null(name, instant()) == pytest.approx(expected), name


def test_axonns_days_saved_follow_from_the_percents() -> None:
    shape = instant().shapes["transformer_100b"]
    each = equation_3(shape, 16384, 1.0) / (384 * 125e12)  # seconds of a batch at the whole peak
    days = [each * 100 / percents[3] * 3e11 / (16384 * shape.sequence) / 86400 for percents in PERCENTS]
    assert null("axonn.fig9.days_saved.100b", instant()) == pytest.approx((days[1] - days[0],))
    assert null("axonn.abstract.training_time_saved", instant())[3] == pytest.approx(days[1] - days[0])


def test_axonns_reduction_is_of_the_bytes_sent() -> None:
    """A ring of 2 sends its gradients once, one of 8 sends 7/4 of them; 2 blocks and the embedding, 8 and it."""
    shape = instant().shapes["transformer_12b"]
    block, embedding = shape.block().parameters, shape.embedding().parameters
    expected = 4.32 * (2 * block + embedding) / (7 / 4 * (8 * block + embedding))
    assert null("axonn.fig6.data_parallel_time.before", instant()) == pytest.approx((expected,))


# SAMO: microbatches of one sample; a batch of 512 for XL and 2.7B, of 2048 for 13B


SAMO_BY_HAND: dict[str, Sequence[float]] = {
    # XL with SAMO has one stage, and without two, with 16 microbatches on 64 GPUs and 2 on 512
    "samo.fig6_7.speedup_over_axonn.gpt3_xl": (10, 100 * (1 - 0.9 * (2 / 3) / (16 / 17))),
    "samo.fig6_7.speedup_over_deepspeed.gpt3_13b": (16.4, 16.4),  # eight stages each
    # 2.7B with SAMO has two stages; DeepSpeed-3D and Sputnik have one, and no bubble
    "samo.abstract.speedup_over_deepspeed_3d": (100 * (1 - 0.83 * (16 / 17) / (2 / 3)),),
    "samo.abstract.speedup_over_sputnik": (100 * (1 - 0.5 * (16 / 17) / (2 / 3)),),
    # 13B on 32 and on 8 stages: 256 microbatches on 256 GPUs and 128 on 512
    "samo.table2.dense_at_largest": (43.3 * (32 / 63) / (256 / 287), 44.6 * (8 / 15) / (64 / 71)),
    "samo.table2.axonn.gpus_512": (43.3 * (128 / 159) / (256 / 287),),
    "samo.table2.axonn.gpus_256": (43.3,),
    # 6.7B on 16 and 4 stages: 128 and 32 microbatches on 128 GPUs, 16 and 4 on 1024
    "samo.sec6b.max_speedup.gpt3_6_7b": (100 * (1 - 0.89 * (16 / 31 / (4 / 7)) / (128 / 143 / (32 / 35))),),
    # 2.7B on 512 GPUs: 8 microbatches on 8 stages, 2 on 2
    "samo.fig8.total.gpus_512": (100 * (1 - (8 / 15) / (2 / 3)),),
    "samo.fig8.bubble.gpus_512": (100 * (1 - (8 / 15) / (2 / 3)),),
    "samo.fig8.p2p.gpus_512": (0,),
    "samo.abstract.communication_time_reduction": (100 * (1 - (1 / 2) / (7 / 8)),),
    "samo.fig5.speedup.vgg_19": (18, 18),
}


def test_samos_null_models() -> None:
    for name, expected in SAMO_BY_HAND.items():
        assert null(name, lab("samo_clusters")) == pytest.approx(expected), name
    ratios = null("samo.fig6_7.samo_over_sputnik", lab("samo_clusters"))
    assert [ratios[first] for first in (0, 4, 8)] == pytest.approx([2, 2, 2])
    assert ratios[7] == pytest.approx(2 * (2 / 3) / (16 / 17))  # 2.7B on 512 GPUs
    ratios = null("samo.sec6b.compute_ratio", lab("samo_clusters"))
    assert ratios == pytest.approx([22.8 / 19.6] * len(ratios), rel=0.01)  # Gflop of an image, by torchvision's count


# PipeOptim


@pytest.mark.slow("null models of every row of PipeOptim")
def test_pipeoptims_null_models() -> None:
    """An epoch takes its flops; a gain over GPipe is its bubble: four microbatches on four stages take seven slots."""
    pipeoptim = lab("pipeoptim_clusters")
    assert null("pipeoptim.table6.resnet_101.spectrain.epoch_time", pipeoptim) == pytest.approx((918.15,))
    by_flops = null("pipeoptim.table6.inception_v3.spectrain.epoch_time", pipeoptim)
    assert by_flops == pytest.approx((918.15 * 5.71 / 7.80,), rel=0.01)  # Gmac of an image, by torchvision's count
    for name in ("fig5.gain_over_gpipe.maximum", "fig6.gain_over_gpipe.gnmt_8", "fig6.gain_over_gpipe.average"):
        assert null(f"pipeoptim.{name}", pipeoptim) == pytest.approx((75,))


# Schedules


def test_rates_take_1f1b_without_message_times() -> None:
    """On 8 stages with 24 microbatches, 7 of 31 slots are idle, whatever the schedule."""
    for schedule in ("one_f_one_b", "zb_h1"):
        assert null(f"schedules.zb.table5.1.5b_m24.{schedule}", None) == pytest.approx((7 / 31,))


# Whole graphs

ROWS = {CAGNET: 1200, AWARE: 300, GVB: 100}  # on any number of GPUs


def graphs() -> Any:
    def full_graph(graph: str, system: str, gpus: int, c: int = 1) -> Any:
        return SimpleNamespace(moved=SimpleNamespace(total=ROWS[system]))

    def epoch(graph: str, system: str, gpus: int, c: int = 1, **options: Any) -> Any:
        return SimpleNamespace(seconds=1.0)

    return SimpleNamespace(full_graph=full_graph, epoch=epoch, forms=list)


def test_graphs_take_the_rows_that_are_sent() -> None:
    query = Question({"c": 2})
    for slower, graph, times in (("sparsity_aware", "reddit", 3.0), ("cagnet", "papers", 12.0)):
        cases, _, nulls = sparse_gnn.speedups(query, graphs(), slower=slower, graph=graph, note="")
        assert nulls == [[pytest.approx(times)]] * len(cases), graph
    assert sparse_gnn.max_speedup(query, graphs(), graphs=["amazon"], gpus=256)[2] == [[12.0]]
    # as many rows, for more processes that could get them
    assert grids.minimum(query, graphs(), forms=["staged", "fused"])[2] == [[256], [256]]


# All of them


def test_every_modelled_number_has_a_null_model_or_a_reason() -> None:
    """By the signature of its function: what returns no third value has none."""
    numbers = {name: pair for name, pair in modelled().items() if not isinstance(pair[0].value, str)}
    bare = {name for name, (_, row) in numbers.items() if not _has_null(row) and row.figure not in WITHOUT}
    assert bare == {name for name in WITHOUT if name in numbers}
    assert len(numbers) > 100


def _has_null(row: AnswerRow) -> bool:
    return function_of(row).__annotations__["return"] == "WithNull"
