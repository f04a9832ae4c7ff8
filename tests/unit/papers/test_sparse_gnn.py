"""Simulated and counted runs of the sparsity-aware GNN paper."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from suite.claims import load
from suite.claims.answer import answer, answers_of_figure
from suite.claims.claim import AnswerRow, Claim, Evidence
from suite.claims.figure_executor import find_figure
from suite.config.compose import composed, resolve
from suite.config.plugins import build
from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName
from suite.core.record import Source
from suite.data.graphs.generate import RMAT, AmazonLike, PapersLike, Planted, ProteinLike, RedditLike
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement, Volumes, count_volumes
from suite.papers.sparse_gnn import figures as sparse_gnn
from suite.papers.sparse_gnn import grids as sparse_gnn_grid
from suite.papers.sparse_gnn.closed_forms import bound_1_5d, bound_1d
from suite.papers.sparse_gnn.cluster_runs import PARTITIONERS, RANDOM, Dataset, GraphLab
from suite.papers.sparse_gnn.expected_volume import random_order_volumes, scale_volumes
from suite.papers.sparse_gnn.figure_executor import TUNED
from suite.papers.sparse_gnn.figures import AWARE, CAGNET, COMPARED, GVB, METIS
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.exchange import Wires
from suite.simulate.network.machine import Link, Machine
from tests.support import modelled
from tests.support.drawn import cells, drawn
from tests.support.volumes import equal

FIGURES_OF = ("gnn_fig3", "gnn_fig4", "gnn_fig5", "gnn_fig6", "gnn_fig7", "gnn_small", "gnn_volumes", "gnn_table2")


@cache
def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in load.claims() if claim.paper == "sparse_gnn"}


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
    answer_rows = [each for figure in FIGURES_OF for each in answers_of_figure(load.claims(), figure)]
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


# -- the lab -----------------------------------------------------------------------------------------------------------


def test_volumes_have_published_size() -> None:
    size = Dataset.of("amazon")
    assert (size.vertices, size.entries, size.features, size.classes) == (14249639, 230788269, 300, 24)
    volumes = lab().volumes("amazon", RANDOM, 16)
    assert volumes.rows.sum() == pytest.approx(size.vertices, rel=1e-4)
    assert volumes.nonzeros.sum() == pytest.approx(size.entries, rel=1e-3)
    assert volumes.total / size.vertices == pytest.approx(lab().counted("amazon", RANDOM, 16).total / 8192, rel=0.02)
    replicated = lab().volumes("amazon", "metis", 32, 2)
    assert (replicated.needed.shape, replicated.placement) == ((16, 16), Placement.of(32, 2))
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


# -- simulated results -------------------------------------------------------------------------------------------------


def test_2d_communication_by_hand() -> None:
    """SUMMA on 8 x 8: each of eight stages broadcasts a block of A and two of H to eight processes."""
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
    panel = sparse_gnn.epoch_panel(lab(), "amazon", COMPARED, (4, 16))
    assert np.isnan(panel.ours[AWARE][0])
    assert np.isfinite(panel.ours[GVB][0])
    assert np.isfinite(panel.ours[AWARE][1])
    assert panel.null[CAGNET][1] == pytest.approx(panel.null[CAGNET][0])  # equally many rows per receiver


@pytest.mark.parametrize("figure", drawn(FIGURES_OF, n=2))
def test_cluster_answers_and_panels_are_complete(figure: str) -> None:
    for claim, _ in answers_of_figure(load.claims(), figure):
        if claim.reach == "cluster":
            assert np.isfinite(ours(claim.id.removeprefix("sparse_gnn."))).all(), claim.id
    for panel in find_figure(figure)[2](lab(), published()):
        for curves in (panel.ours, panel.ids(), panel.null):
            assert all(len(curve) == len(panel.x) for curve in curves.values()), panel.title


# -- expected volumes and printed costs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "k"), cells((RMAT(vertices=4096, degree=12), Planted(vertices=4096)), (2, 7, 16), n=2)
)
def test_expected_volume_matches_counted_random_orders(source: RMAT | Planted, k: int) -> None:
    matrix = source.load(3).adjacency
    n = matrix.shape[0]
    expected = random_order_volumes(np.diff(matrix.indptr), Placement(k), vertices=n, entries=matrix.nnz)
    totals = [count_volumes(matrix, Random().parts(matrix, k, seed), k).total for seed in range(3)]
    assert np.mean(totals) == pytest.approx(expected.total, rel=0.01)
    assert expected.rows.sum() == n
    assert expected.nonzeros.sum() == pytest.approx(matrix.nnz, rel=0.01)
    assert expected.imbalance == 0


def test_expected_volume_of_degenerate_graphs() -> None:
    """With four neighbours per vertex, another quarter of the vertices holds no neighbour with probability (3/4)^4."""
    expected = random_order_volumes([1.0, 1.0], Placement(4), vertices=4000, entries=16000)
    assert (expected.needed[0, 1], expected.nonzeros[2, 3]) == (round(1000 * (1 - 0.75**4)), 1000)
    assert random_order_volumes([3.0], Placement(1), vertices=10, entries=30).total == 0
    assert random_order_volumes([0.0, 0.0], Placement(3), vertices=9, entries=0).total == 0
    assert list(random_order_volumes([1.0], Placement(4), vertices=10, entries=10).rows) == [2, 3, 2, 3]
    with pytest.raises(InvalidRequest):
        random_order_volumes([], Placement(2), vertices=3, entries=3)


def test_scaling_follows_vertices_and_entries() -> None:
    counted = equal(4, 5, rows=50, entries=40)
    scaled = scale_volumes(counted, vertices=2000, entries=6400)
    assert (scaled.rows.sum(), scaled.nonzeros.sum(), scaled.needed[0, 1]) == (2000, 6400, 50)
    assert scaled.imbalance == counted.imbalance
    empty = Volumes(np.zeros((2, 2), int), np.full(2, 5), np.zeros((2, 2), int), Placement(2))
    assert scale_volumes(empty, vertices=100, entries=7).nonzeros.sum() == 0


def test_printed_1d_cost_is_exact_for_equal_parts() -> None:
    """Section 4.1, on nodes of one device."""
    wires = Wires(modelled.machine(devices_per_node=1, between=Link(0.25, 10.0)), modelled.efficiency(adapters=4))
    for parts, cut in ((2, 3), (5, 7), (64, 12)):
        volumes = equal(parts, cut)
        printed = bound_1d(volumes, 3, alpha=0.25, beta=4 / 10.0)
        assert wires.all_to_all(volumes, 4 * 3.0) == pytest.approx(printed, rel=1e-12)
        assert printed == pytest.approx(0.25 * (parts - 1) + (parts - 1) * cut * 3 * 0.4, rel=1e-12)


def test_printed_15d_cost_by_hand() -> None:
    """Section 4.2 at P = 16, c = 2: four stages."""
    volumes = equal(8, 7, replication=2, rows=30)
    assert bound_1_5d(volumes, 5, alpha=2.0, beta=0.5) == pytest.approx(2.0 * 4 * math.log(4) + 4 * 7 * 5 * 0.5)


# -- the record --------------------------------------------------------------------------------------------------------


def test_record_lists_stand_ins_and_tuned_claims() -> None:
    words = ["executor=graph_clusters", "executor.figure=gnn_table2", "executor.counted=true"]
    executor = resolve(words).executor.build()
    executor.lab = lab()
    executor.check({})
    record = executor.run({})
    assert record.source is Source.ANALYTIC
    assert set(TUNED["amazon"]) <= set(record.calibrated_on)
    assert not set(efficiency().calibrated_on) & set(record.calibrated_on)
    assert set(record.metrics) == {claim.id for claim, _ in answers_of_figure(load.claims(), "gnn_table2")}
    assert any("amazon_like of 8192 vertices" in note for note in record.notes)
