"""Decides what the sparsity-aware GNN paper's formulas come to when they are counted: from plans, grids and messages.

Nothing here has a machine of its own or a stand-in: a point of a formula is a plan of that size, and the cost model is
driven on links whose latency and bandwidth are the point's. What is said of a training is looked up in one, a small
graph on threads (suite.clusters.sparse_gnn_trained).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array, random_array

from suite import claims as rows
from suite.analytic.question import Cases, Question
from suite.clusters.figure import Panel, figure, number
from suite.clusters.graph_lab import Dataset, GraphLab
from suite.core.claim import Claim
from suite.data.graphs import operator
from suite.data.graphs.generate import RMAT, Planted
from suite.gnn.partition.plain import Block, Random
from suite.gnn.plan import Placement, Plan, Volumes, volumes
from suite.gnn.share import Share
from suite.simulate.exchange import Wires, bound_1_5d, bound_1d, bound_sum
from suite.simulate.machine import Link, Machine
from suite.simulate.stack import Stack
from suite.workload.gcn import GCN

BARE = Stack("bare", 1.0)  # everything is reached, nothing costs time by itself
PUBLISHED = ("reddit", "amazon", "protein", "papers")


def even(vertices: int, k: int, cut: int, placement: Placement | None = None) -> Volumes:
    """Every part needs `cut` rows of each other one."""
    needed = np.full((k, k), cut)
    np.fill_diagonal(needed, 0)
    sizes = np.bincount(Block().parts(csr_array((vertices, vertices)), k, 0), minlength=k)
    return Volumes(needed, sizes, needed, placement or Placement(k))


def apart(alpha: float, beta: float) -> Wires:
    """Nodes of one device: alpha seconds a message, beta seconds a word."""
    link = Link(alpha, 1 / beta)
    return Wires(Machine("points", 1, 1.0, {"float32": 1.0}, 1.0, link, link, 1, link), BARE)


def small_graphs() -> list[csr_array]:
    """Matrices without structure, of the two kinds that are drawn without a setting; and a directed one."""
    rng = np.random.default_rng(0)
    directed = csr_array(random_array((200, 200), density=0.03, rng=rng, format="csr"))
    drawn = [RMAT(vertices=512, degree=8), Planted(vertices=512, blocks=16, classes=8)]
    return [*(operator(source.load(0)) for source in drawn), directed]


def _panels(lab: GraphLab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    """The printed costs of a product beside what a message passing process waits, and the all-reduce left out (G2)."""
    counts, width, cut = (16, 64, 256), 300, 1000
    link = lab.machine.between
    beta = 4 / link.bandwidth
    curves: dict[str, list[float]] = {name: [] for name in ("1D, printed", "1D, all to all", "1.5D, printed")}
    curves |= {"1.5D, in stages": [], "1.5D, its all-reduce": []}
    for p in counts:
        one = even(p * cut * 4, p, cut)
        two = even(p * cut * 4, p // 2, 2 * cut, Placement.of(p, 2))
        wires = apart(link.latency, beta)
        curves["1D, printed"].append(bound_1d(one, width, alpha=link.latency, beta=beta))
        curves["1D, all to all"].append(wires.all_to_all(one, width))
        curves["1.5D, printed"].append(bound_1_5d(two, width, alpha=link.latency, beta=beta))
        curves["1.5D, in stages"].append(wires.staged(two, width))
        curves["1.5D, its all-reduce"].append(bound_sum(two, width, beta=beta))
    title = f"A product of width {width}, {cut} rows a pair at c = 1 and {2 * cut} at c = 2"
    return [Panel(title, "s", [str(p) for p in counts], curves, axis="processes")]


small = figure("gnn_small", "Sections 1 and 4 to 6, what is counted without a graph", _panels)


def points(question: Question) -> list[dict[str, int]]:
    return [{name: int(value) for name, value in point.items()} for point in question.points]


# -- Section 4 ---------------------------------------------------------------------------------------------------------


@small("sparse_gnn.sec1.spmm_per_epoch", unit="call")
def products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    found = [GCN(p["L"]).products(300, 24) for p in points(question)]
    lean = [len(GCN(p["L"]).products(300, 24, epoch="lean")) for p in points(question)]
    told = f"as Section 2.1 prints an epoch (G4); model.epoch=lean keeps the first layer's product: {lean}"
    return [[len(each) for each in found]], told


@small("sparse_gnn.sec4.memory", unit="word")
def memory(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Entries of all processes' matrices, and of what each layer makes of H."""
    values = []
    for p in points(question):
        found = even(p["n"], 4, 1)
        held = Volumes(found.needed, found.rows, _dealt(p["nnz"], 4), found.placement)
        widths = GCN(p["L"], p["f"]).widths(p["f"], p["f"])[1:]
        values.append(int(held.entries.sum()) + int(held.rows.sum()) * sum(widths))
    return [values], "the constant 1: matrix entries and the L embedding matrices, over all processes"


def _dealt(total: int, k: int) -> np.ndarray:
    return np.diff(np.arange(k * k + 1) * total // (k * k)).reshape(k, k)


@small("sparse_gnn.sec4.1.comm_one_spmm_1d", unit="second")
def one_product(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_all_to_all(p) for p in question.points]], "every pair sends as much: the messages of one process, in turn"


def _all_to_all(p: Mapping[str, float]) -> float:
    k, cut = int(p["P"]), int(p["cut"])
    return apart(p["alpha"], p["beta"]).all_to_all(even(k * cut, k, cut), p["f"])


@small("sparse_gnn.sec4.1.comm_total_1d", unit="second")
def all_products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [_calls(p) * _all_to_all(p) for p in question.points]
    return [values], "the products that an epoch of L square layers calls (G4)"


def _calls(p: Mapping[str, float]) -> int:
    layers, width = int(p["L"]), int(p["f"])
    return len(GCN(layers, width).products(width, width))


@small("sparse_gnn.sec4.1.oblivious_volume", unit="row")
def oblivious(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in points(question):
        matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
        values.append(volumes(matrix, Block().parts(matrix, p["P"], 0), p["P"]).oblivious().total)
    return [values], "block rows as equal as they can be, uneven ones too"


@small("sparse_gnn.sec4.1.aware_volume", unit="row")
def aware(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for matrix in small_graphs():
        plan = Plan.of(matrix, Random().parts(matrix, 5, 0), Placement(5))
        shares = [Share.of(plan, rank) for rank in range(5)]
        for i in range(5):
            for q in range(5):
                rows_of, columns = (slice(plan.offsets[at], plan.offsets[at + 1]) for at in (i, q))
                nonzero = np.count_nonzero(plan.matrix[rows_of].toarray()[:, columns].any(axis=0))
                cases += [[nonzero, int(shares[q].sent[i])]] if i != q else []
    return cases, "R-MAT, a planted partition and a directed matrix in a random order, five processes"


@small("sparse_gnn.sec4.1.aware_never_more", unit="byte")
def never_more(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for matrix in small_graphs():
        for partitioner in (Block(), Random()):
            for k in (2, 3, 8, 64):
                found = volumes(matrix, partitioner.parts(matrix, k, 0), k)
                cases.append([4 * found.total, 4 * found.oblivious().total])
    return cases, "of width 1; three matrices, two orders, 2 to 64 processes"


@small("sparse_gnn.sec4.1.backward_same", unit="byte")
def backward(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    matrix = small_graphs()[0]
    parts = Random().parts(matrix, 6, 0)
    ahead, back = (volumes(csr_array(each), parts, 6).needed for each in (matrix.T.tocsr(), matrix))
    return [[4 * a, 4 * b] for a, b in zip(ahead.ravel(), back.ravel(), strict=True)], "columns of A^T and of A, R-MAT"


@small("sparse_gnn.sec4.1.weight_gradient", unit="word")
def weight_gradient(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[GCN(1, p["f"]).parameters(p["f"], p["f"]) for p in points(question)]], "weights of one layer, held by all"


@small("sparse_gnn.sec4.2.grid", unit="none")
def grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in points(question):
        placement = Placement.of(p["P"], p["c"])
        held = np.bincount([placement.place(rank)[0] for rank in range(placement.processes)])
        values.append(int(np.count_nonzero(held == p["c"])))
    return [values], "block rows that exactly c processes hold"


@small("sparse_gnn.sec4.2.stages", unit="stage")
def stages(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in points(question):
        placement = Placement.of(p["P"], p["c"])
        each = {len(placement.stages(rank)) for rank in range(placement.processes)}
        values.append(each.pop() if len(each) == 1 else float("nan"))
    return [values], "of every process"


@small("sparse_gnn.sec4.2.comm_one_spmm_1_5d", unit="second")
def one_product_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_bound(p) for p in question.points]], _beside(question.points[0])


def _bound(p: Mapping[str, float]) -> float:
    return bound_1_5d(_replicated(p), int(p["f"]), alpha=p["alpha"], beta=p["beta"])


def _replicated(p: Mapping[str, float]) -> Volumes:
    processes, c, cut = (int(p[name]) for name in ("P", "c", "cut"))
    return even(processes * cut, processes // c, cut, Placement.of(processes, c))


def _beside(p: Mapping[str, float]) -> str:
    found = _replicated(p)
    sums, staged = bound_sum(found, int(p["f"]), beta=p["beta"]), apart(p["alpha"], p["beta"]).staged(found, p["f"])
    return (
        f"stages and longest message of a plan, in the printed cost; at the first point {_bound(p):.3g} s, the "
        f"all-reduce (G2) {sums:.3g} s more, and Algorithm 2's stages, one sender at a time, take {staged:.3g} s"
    )


@small("sparse_gnn.sec4.2.comm_total_1_5d", unit="second")
def all_products_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_calls(p) * _bound(p) for p in question.points]], _beside(question.points[0])


@small("sparse_gnn.sec4.2.allreduce_size", unit="word")
def summed(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in points(question):
        placement = Placement.of(p["P"], p["c"])
        values.append(int(even(p["n"], placement.parts, 1, placement).summed.max()) * p["f"])
    return [values], "what the largest block row has"


@small("sparse_gnn.sec4.2.bandwidth_scales_with_c", unit="second")
def scales(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """The cut falls as one over the parts: c times as large at c."""
    values = []
    for p in points(question):
        terms = [
            bound_1_5d(_replicated({"P": p["P"], "c": c, "cut": 12 * c}), 1, alpha=0.0, beta=1.0) for c in (p["c"], 1)
        ]
        values.append(terms[0] / terms[1])
    return [values], "without latency, over the same at c = 1"


@small("sparse_gnn.sec7.2.partitions", unit="partition")
def partitions(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[Placement.of(p["P"], p["c"]).parts for p in points(question)]], "block rows of the grid"


@small("sparse_gnn.sec5.imbalance_amplified_by_f", unit="ratio")
def amplified(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    def extra(width: int) -> float:
        more, less = (bound_1d(even(4000, 4, cut), width, alpha=0.0, beta=1.0) for cut in (101, 100))
        return more - less

    return [[extra(p["f"]) / extra(1) for p in points(question)]], "one more row in every pair's cut"


@small("sparse_gnn.sec1.volume_bound", unit="none")
def volume_bound(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    published = {claim.id: claim for claim in rows.load()}
    cases = []
    for p in (16, 32, 64, 128, 256):
        size = 1e6 * number(published, f"sparse_gnn.table2.average.p_{p}")
        latency = apart(lab.machine.between.latency, 1e-30).all_to_all(even(p, p, 1), 1)
        cases.append([latency, size / lab.machine.between.bandwidth])
    return cases, "seconds: Table 2's averages over one adapter; 4 microseconds a message, on 16 to 256 processes"


@small("sparse_gnn.sec7.1.broadcast_log_p2p_linear", unit="second")
def broadcast_and_pairs(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    wires, size, cases = Wires(lab.machine, lab.stack), 1e8, []
    for p in (8, 32, 128):
        sent = [wires.all_to_all(_from_one(each), size) for each in (p, 2 * p)]
        broadcast = [wires.broadcast(size, range(each)) for each in (p, 2 * p)]
        cases.append([broadcast[1] / broadcast[0], sent[1] / sent[0]])
    return cases, "a block row of 100 MB on Perlmutter, from one process to all others, at twice as many over as many"


def _from_one(processes: int) -> Volumes:
    """One row of the first process goes to each other."""
    needed = np.zeros((processes, processes), dtype=np.int64)
    needed[1:, 0] = 1
    return Volumes(needed, np.ones(processes, dtype=np.int64), needed, Placement(processes))


# -- Table 3 -----------------------------------------------------------------------------------------------------------


@small(*(f"sparse_gnn.table3.{g}.features" for g in ("amazon", "protein")), unit="feature")
def features(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[lab.source(question.setting["dataset"]).features]], "columns that the configured source draws"


@small(*(f"sparse_gnn.table3.{g}.labels" for g in ("amazon", "protein")), unit="label")
def labels(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[lab.source(question.setting["dataset"]).classes]], "labels that the configured source draws"


@small("sparse_gnn.sec6.3.reddit_densest", "sparse_gnn.sec6.3.amazon_sparsest", unit="edge/vertex")
def density(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    sizes = [Dataset.of(term) for term in question.terms]
    cases = [[size.entries / size.vertices for size in sizes]]
    if question.id.endswith("densest"):
        cases.append([1 / size.vertices for size in sizes])
    return cases, "counts of the published settings"


@small("sparse_gnn.sec6.3.papers_largest", unit="vertex")
def largest(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[Dataset.of(term).vertices for term in question.terms]], "counts of the published settings"
