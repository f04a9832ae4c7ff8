"""Simulated and counted runs of the sparsity-aware GNN paper."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from suite.config.compose import composed, resolve
from suite.config.plugins import build
from suite.core.claim import AnswerRow, Check, Claim, Evidence
from suite.core.errors import DoesNotFit, UnknownName
from suite.core.expression import evaluate
from suite.core.record import Source
from suite.data.graphs.generate import AmazonLike, PapersLike, ProteinLike, RedditLike
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement
from suite.papers.common import claims
from suite.papers.common.answer import answer, answers_of_figure
from suite.papers.common.figure_executor import find_figure
from suite.papers.sparse_gnn import calibrate as sparse_gnn_fitted
from suite.papers.sparse_gnn import counts as sparse_gnn_counted
from suite.papers.sparse_gnn import figures as sparse_gnn
from suite.papers.sparse_gnn import grids as sparse_gnn_grid
from suite.papers.sparse_gnn import probes as sparse_gnn_trained
from suite.papers.sparse_gnn.cluster_runs import PARTITIONERS, RANDOM, Dataset, GraphLab
from suite.papers.sparse_gnn.figure_executor import TUNED, GraphFigureExecutor
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, COMPARED, GVB, METIS, ratio, seconds
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

FIGURES_OF = ("gnn_fig3", "gnn_fig4", "gnn_fig5", "gnn_fig6", "gnn_fig7", "gnn_small", "gnn_volumes", "gnn_table2")
# claims that need published data or the authors' own program
LEFT_OUT = {
    *(f"sparse_gnn.table3.{g}.{column}" for g in ("reddit", "papers") for column in ("features", "labels")),
    *(
        f"sparse_gnn.table3.{g}.{column}"
        for g in ("reddit", "amazon", "protein", "papers")
        for column in ("vertices", "edges")
    ),
    *(f"sparse_gnn.{name}" for name in ("sec6.3.protein_subgraph", "sec7.1.gvb_oom_papers")),
}


@cache
def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in claims.load() if claim.paper == "sparse_gnn"}


@cache
def machine() -> Machine:
    built: Machine = build(resolve(["executor=volumes", "system=sparsity_aware"]).executor.more["machine"])
    return built


@cache
def efficiency() -> Efficiency:
    built: Efficiency = build(composed(["efficiency=gnn"])["efficiency"])
    return built


@cache
def lab() -> GraphLab:
    """Smaller stand-ins; METIS with another balance replaces the GVB-style partitioner."""
    return GraphLab(
        machine(),
        {"gnn": efficiency()},
        {
            "amazon": AmazonLike(vertices=8192),
            "protein": ProteinLike(vertices=16384, degree=6, bridges=0.05),
            "reddit": RedditLike(vertices=2048, degree=60),
            "papers": PapersLike(vertices=4096),
        },
        {RANDOM: Random(), "metis": Metis(), "gvb": Metis(ufactor=100)},
        None,
        {CAGNET: "baselines.cagnet.Oblivious", AWARE: "suite.gnn.exchange.Aware"},
    )


@cache
def rows() -> dict[str, AnswerRow]:
    """The answer of each claim that these figures compute; of two, the derived one."""
    answer_rows = [each for figure in FIGURES_OF for each in answers_of_figure(claims.load(), figure)]
    return {claim.id: row for claim, row in sorted(answer_rows, key=lambda each: each[1].evidence is Evidence.DERIVED)}


def ours(name: str) -> list[tuple[float, ...]]:
    """Our cases of a claim, checked for unit, note and case length."""
    claim = published()[f"sparse_gnn.{name}"]
    answered = answer(claim, rows()[claim.id], lab())
    assert answered.unit == claim.unit
    assert answered.note
    width = max(1, len(claim.terms) or len(claim.points))
    assert len(answered.values) % width == 0
    return [answered.values[i : i + width] for i in range(0, len(answered.values), width)]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_every_claim_is_answered_or_listed_as_left_out() -> None:
    assert {name for name, claim in published().items() if not claim.answers} == LEFT_OUT
    figures = {row.figure for claim in published().values() for row in claim.answers if row.figure}
    assert figures == {*FIGURES_OF, "formulas"}
    assert set(rows()) <= set(published())


def test_counted_formulas_equal_printed_expressions() -> None:
    formulas = [claim for claim in published().values() if claim.check is Check.FORMULA]
    assert len(formulas) == 14
    for claim in formulas:
        if not claim.id.endswith(("sec1.spmm_per_epoch", "sec4.2.bandwidth_scales_with_c")):
            values = [evaluate(claim.expression, point) for point in claim.points]
            assert ours(claim.id.removeprefix("sparse_gnn."))[0] == pytest.approx(values, rel=1e-12), claim.id
    assert ours("sec1.spmm_per_epoch") == [(4, 6, 10)]  # 2 L by the printed equations (G4)


def test_answers_that_need_no_stand_in() -> None:
    assert all(a == b for a, b in ours("sec4.1.aware_volume"))
    pairs = ours("sec4.1.backward_same")
    assert all(a == b for a, b in pairs[:72])
    assert [sum(column) / 4 for column in zip(*pairs[72:], strict=True)] == [619, 638]  # of the directed graph
    assert all(aware <= oblivious for aware, oblivious in ours("sec4.1.aware_never_more"))
    assert sum(aware < oblivious for aware, oblivious in ours("sec4.1.aware_never_more")) > 10
    assert all(latency < volume for latency, volume in ours("sec1.volume_bound"))
    growth = ours("sec7.1.broadcast_log_p2p_linear")
    assert all(broadcast < 1.7 for broadcast, _ in growth[::2])
    assert all(pairs > 1.9 for pairs, _ in growth[1::2])
    assert [law for _, law in growth[:2]] == pytest.approx([4 / 3, 15 / 7])
    assert ours("table3.amazon.features") == [(300,)]


def test_training_agrees_between_exchanges() -> None:
    losses = ours("sec6.2.accuracy_unchanged")
    assert len(losses) == 2 * 2 * 2 * sparse_gnn_trained.EPOCHS
    assert all(b == pytest.approx(a, rel=1e-9) for a, b in losses)
    assert losses[0][0] > losses[-2][0]  # it learns
    assert ours("sec4.1.activation_free") == [(0,)] * 4
    assert ours("sec1.partition_once") == [(1,)] * 2
    assert all(b == pytest.approx(a, rel=1e-12) for a, b in ours("sec7.2.c1_is_1d"))


def test_1d_reference_multiplies_without_a_plan() -> None:
    graph = sparse_gnn_trained.GRAPH.load(0).adjacency
    offsets = np.array([0, 40, 90, 128])
    x = np.random.default_rng(1).standard_normal((128, 2))
    z, sent = sparse_gnn_trained.multiply_in_1d(graph, offsets, x)
    assert z == pytest.approx(graph @ x)
    assert len(sent) == 3
    assert min(sent) > 0


# -- the lab -----------------------------------------------------------------------------------------------------------


def test_volumes_have_published_size() -> None:
    size = Dataset.of("amazon")
    assert (size.vertices, size.entries, size.features, size.classes) == (14249639, 230788269, 300, 24)
    for name in (RANDOM, "metis"):
        volumes = lab().volumes("amazon", name, 16)
        assert volumes.rows.sum() == pytest.approx(size.vertices, rel=1e-4)
        assert volumes.nonzeros.sum() == pytest.approx(size.entries, rel=1e-3)
    counted, scaled = lab().counted("amazon", RANDOM, 16), lab().volumes("amazon", RANDOM, 16)
    assert scaled.total / size.vertices == pytest.approx(counted.total / 8192, rel=0.02)
    for name in (RANDOM, "metis"):
        volumes = lab().volumes("amazon", name, 32, 2)
        assert (volumes.needed.shape, volumes.placement) == ((16, 16), Placement.of(32, 2))
    with pytest.raises(UnknownName):
        Dataset.of("amazn")


def test_random_order_of_dense_graph_needs_nearly_every_row() -> None:
    """With 242 neighbours per vertex, 1 - (255/256)^242 of the rows on 256 processes (Section 7.1)."""
    volumes = lab().volumes("protein", RANDOM, 256)
    share = volumes.receive[0] / (255 * volumes.rows[0])
    assert share == pytest.approx(1 - (255 / 256) ** 242, abs=0.02)


def test_systems_use_their_form_of_exchange() -> None:
    assert set(PARTITIONERS) == {CAGNET, AWARE, METIS, GVB}
    forms = [(s, c, lab().full_graph("amazon", s, 16, c).form) for s in (CAGNET, AWARE) for c in (1, 2)]
    assert [form for _, _, form in forms] == ["oblivious", "oblivious", "fused", "staged"]
    assert lab().full_graph("amazon", AWARE, 16).published
    with pytest.raises(UnknownName):
        lab().full_graph("amazon", "cagne", 16)


def test_partitions_and_graphs_are_cached() -> None:
    one = replace(lab())
    assert one.source("reddit").features == 300
    assert one.partition("papers", "metis", 4) is one.partition("papers", "metis", 4)
    assert one.with_efficiency(replace(efficiency(), launch=1.0)).matrix("papers") is one.matrix("papers")


# -- the constants -----------------------------------------------------------------------------------------------------


def test_fitted_constant_equals_configured_constant() -> None:
    """At the configured sizes, with METIS for GVB on Protein, which sends slightly more."""
    executor = resolve(["executor=graph_clusters", "executor.figure=gnn_fig3"]).executor.build()
    assert isinstance(executor, GraphFigureExecutor)
    configured = replace(executor.lab, partitioners={RANDOM: Random(), "gvb": Metis()}, folder=None)
    fitted = sparse_gnn_fitted.fitted(configured, {})
    assert set(efficiency().fitted) == set(sparse_gnn_fitted.FITTED)
    assert all(efficiency().fitted[name] == [cell] for name, cell in sparse_gnn_fitted.FITTED.items())
    assert efficiency().network == pytest.approx(fitted.network, rel=0.02)


# -- simulated results -------------------------------------------------------------------------------------------------


def test_broadcasts_slow_down_with_gpus_and_messages_do_not() -> None:
    """1D: a broadcast keeps its bytes and gains steps; in a random order each part needs less of smaller blocks."""
    for graph in ("amazon", "protein"):
        rows = [lab().epoch(graph, CAGNET, p).exchange for p in (16, 32, 64, 128, 256)]
        assert rows == sorted(rows)
        assert rows[-1] > 2 * rows[0]
    assert seconds(lab(), "amazon", AWARE, 256) < seconds(lab(), "amazon", AWARE, 16) / 3
    assert seconds(lab(), "protein", AWARE, 16) > seconds(lab(), "protein", CAGNET, 16)
    assert seconds(lab(), "protein", AWARE, 256) < seconds(lab(), "protein", CAGNET, 256)
    assert ratio(lab(), "amazon", 16, AWARE, CAGNET) == pytest.approx(1.0, abs=0.05)


def test_staged_exchange_is_slower_than_fused() -> None:
    """Figure 7: staged, SA loses at every count; fused, it wins where messages are few."""
    for graph in ("amazon", "protein"):
        for c in (2, 4):
            for p in (16, 256):
                oblivious, staged = (seconds(lab(), graph, s, p, c) for s in (CAGNET, AWARE))
                assert staged > oblivious
                fused = lab().epoch(graph, AWARE, p, c, form="fused")
                assert fused.exchange < lab().epoch(graph, AWARE, p, c).exchange * 1.001
    assert lab().epoch("amazon", AWARE, 256, 2, form="fused").seconds < seconds(lab(), "amazon", CAGNET, 256, 2)


def test_2d_communication_by_hand() -> None:
    """SUMMA on 8 x 8: each of eight stages broadcasts a block of A and two of H to eight processes."""
    from suite.simulate.network.exchange import Wires

    wires, size = Wires(machine(), efficiency()), Dataset.of("amazon")
    expected = 0.0
    for width in (300, 16, 16, 24, 16, 16):
        block = 4 * size.vertices * width / 64
        expected += 8 * wires.broadcast(20 * size.entries / 64, range(8))
        expected += 8 * (wires.broadcast(block, range(0, 64, 8)) + wires.broadcast(block, range(8)))
    assert sparse_gnn_grid.planes(lab(), "amazon", 64) == pytest.approx(expected)
    assert sparse_gnn_grid.planes(lab(), "amazon", 64, 4) < expected


def test_runs_beyond_memory_are_not_plotted() -> None:
    with pytest.raises(DoesNotFit):
        lab().full_graph("protein", AWARE, 4).check_memory(machine())
    panel = sparse_gnn.epoch_panel(lab(), "Figure 3", "amazon", COMPARED, (4, 16))
    assert np.isnan(panel.ours[AWARE][0])
    assert np.isfinite(panel.ours[GVB][0])
    assert np.isfinite(panel.ours[AWARE][1])
    assert panel.null[CAGNET][1] == pytest.approx(panel.null[CAGNET][0])  # equally many rows per receiver


def test_cluster_answers_and_panels_are_complete() -> None:
    for name, claim in published().items():
        if claim.reach == "cluster" and name in rows():
            assert all(np.isfinite(value) for case in ours(name.removeprefix("sparse_gnn.")) for value in case), name
    for figure in FIGURES_OF:
        for panel in find_figure(figure)[1](lab(), published()):
            for curves in (panel.ours, panel.paper, panel.null):
                assert all(len(curve) == len(panel.x) for curve in curves.values()), panel.title


def test_table_2_counts_bytes_sent_per_process() -> None:
    volumes = lab().volumes("amazon", "metis", 16)
    row = sparse_gnn_counted.table2_row(lab(), 16)
    assert row["average"] == pytest.approx(volumes.total * 300 * 4 / 16 / 1e6)
    assert row["maximum"] == pytest.approx(row["average"] * (1 + row["imbalance"] / 100))
    assert ours("table2.average.p_16")[0][0] == row["average"]
    assert ours("table2.imbalance_grows")[0][0] == row["imbalance"]


# -- the record --------------------------------------------------------------------------------------------------------


def test_record_lists_stand_ins_and_tuned_claims() -> None:
    parts = lab()
    executor = GraphFigureExecutor(
        figure="gnn_table2",
        machine=machine(),
        efficiencies={"gnn": efficiency()},
        stand_ins={name: {"name": name, "source": source} for name, source in parts.graphs.items()},
        partitioners=parts.partitioners,
        counted=True,
    )
    executor.lab = parts
    executor.check({})
    record = executor.run({})
    assert record.source is Source.ANALYTIC
    assert set(TUNED["amazon"]) <= set(record.calibrated_on)
    assert not set(efficiency().calibrated_on) & set(record.calibrated_on)
    assert set(record.metrics) == {claim.id for claim, _ in answers_of_figure(claims.load(), "gnn_table2")}
    assert any("amazon_like of 8192 vertices" in note for note in record.notes)
    every = {name for names in TUNED.values() for name in names}
    assert every == {name for name in published() if ".table2." in name} | {
        "sparse_gnn.sec7.1.1.bottleneck_p64",
        "sparse_gnn.sec7.1.1.protein_edgecut",
    }
