"""The paper's formulas, compared with counts from plans, grids and messages.

No machine and no stand-in is involved: a point of a formula is a plan of that size, and the cost model is driven on
links with the latency and bandwidth of the point. Claims on a training are checked in one, a small graph on threads
(suite.papers.sparse_gnn.probes)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, random_array

from suite.core.claim import Claim
from suite.core.figure import FigurePanel
from suite.data.graphs import operator
from suite.data.graphs.generate import RMAT, Planted
from suite.gnn.local_block import LocalBlock
from suite.gnn.partition.simple import Block, Random
from suite.gnn.plan import ExchangePlan, Placement, Volumes, count_volumes
from suite.papers.common.answer import Cases, Question
from suite.papers.sparse_gnn.closed_forms import bound_1_5d, bound_1d, bound_sum
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.counts import MEGABYTE, sent
from suite.simulate.cost.efficiency import Stack
from suite.simulate.network.exchange import Wires
from suite.simulate.network.machine import Link, Machine
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


def small_panels(lab: GraphLab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    """The printed costs of a product, compared with the waiting time of a message passing process, with the
    all-reduce left out (G2).
    """
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
    return [
        FigurePanel(
            title,
            "s",
            [str(p) for p in counts],
            curves,
            axis="processes",
            quantity="time of a product",
            evidence="derived",
        )
    ]


# -- Section 4 ---------------------------------------------------------------------------------------------------------


def products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    products_by_point = [GCN(p["L"]).products(300, 24) for p in question.integer_points()]
    lean = [len(GCN(p["L"]).products(300, 24, epoch="lean")) for p in question.integer_points()]
    note = f"as Section 2.1 prints an epoch (G4); model.epoch=lean keeps the first layer's product: {lean}"
    return [[len(each) for each in products_by_point]], note


def memory(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Entries of all processes' matrices, and of what each layer makes of H."""
    values = []
    for p in question.integer_points():
        partition = even(p["n"], 4, 1)
        volumes = Volumes(partition.needed, partition.rows, _dealt(p["nnz"], 4), partition.placement)
        widths = GCN(p["L"], p["f"]).widths(p["f"], p["f"])[1:]
        values.append(int(volumes.entries.sum()) + int(volumes.rows.sum()) * sum(widths))
    return [values], "the constant 1: matrix entries and the L embedding matrices, over all processes"


def _dealt(total: int, k: int) -> np.ndarray:
    return np.diff(np.arange(k * k + 1) * total // (k * k)).reshape(k, k)


def one_product(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_all_to_all(p) for p in question.points]], "every pair sends as much: the messages of one process, in turn"


def _all_to_all(p: Mapping[str, float]) -> float:
    k, cut = int(p["P"]), int(p["cut"])
    return apart(p["alpha"], p["beta"]).all_to_all(even(k * cut, k, cut), p["f"])


def all_products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [_calls(p) * _all_to_all(p) for p in question.points]
    return [values], "the products that an epoch of L square layers calls (G4)"


def _calls(p: Mapping[str, float]) -> int:
    layers, width = int(p["L"]), int(p["f"])
    return len(GCN(layers, width).products(width, width))


def oblivious(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
        values.append(count_volumes(matrix, Block().parts(matrix, p["P"], 0), p["P"]).oblivious().total)
    return [values], "block rows as equal as they can be, uneven ones too"


def aware(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for matrix in small_graphs():
        plan = ExchangePlan.build(matrix, Random().parts(matrix, 5, 0), Placement(5))
        blocks = [LocalBlock.from_plan(plan, rank) for rank in range(5)]
        for i in range(5):
            for q in range(5):
                rows_of, columns = (slice(plan.offsets[at], plan.offsets[at + 1]) for at in (i, q))
                nonzero = np.count_nonzero(plan.matrix[rows_of].toarray()[:, columns].any(axis=0))
                cases += [[nonzero, int(blocks[q].send_counts[i])]] if i != q else []
    return cases, "R-MAT, a planted partition and a directed matrix in a random order, five processes"


def never_more(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for matrix in small_graphs():
        for partitioner in (Block(), Random()):
            for k in (2, 3, 8, 64):
                counted = count_volumes(matrix, partitioner.parts(matrix, k, 0), k)
                cases.append([4 * counted.total, 4 * counted.oblivious().total])
    return cases, "of width 1; three matrices, two orders, 2 to 64 processes"


def backward(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for matrix in small_graphs():
        parts = Random().parts(matrix, 6, 0)
        ahead, back = (count_volumes(csr_array(each), parts, 6).needed for each in (matrix.T.tocsr(), matrix))
        cases += [[4 * a, 4 * b] for a, b in zip(ahead.ravel(), back.ravel(), strict=True)]
    return cases, "columns of A^T and of A: R-MAT, a planted partition, and a directed matrix"


def weight_gradient(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [GCN(1, p["f"]).parameters(p["f"], p["f"]) for p in question.integer_points()]
    return [values], "weights of one layer, held by all"


def grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        rows_per_process = np.bincount([placement.coordinates(rank)[0] for rank in range(placement.processes)])
        values.append(int(np.count_nonzero(rows_per_process == p["c"])))
    return [values], "block rows that exactly c processes hold"


def stages(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        each = {len(placement.stages(rank)) for rank in range(placement.processes)}
        values.append(each.pop() if len(each) == 1 else float("nan"))
    return [values], "of every process"


def one_product_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_bound(p) for p in question.points]], _beside(question.points[0])


def _bound(p: Mapping[str, float]) -> float:
    return bound_1_5d(_replicated(p), int(p["f"]), alpha=p["alpha"], beta=p["beta"])


def _replicated(p: Mapping[str, float]) -> Volumes:
    processes, c, cut = (int(p[name]) for name in ("P", "c", "cut"))
    return even(processes * cut, processes // c, cut, Placement.of(processes, c))


def _beside(p: Mapping[str, float]) -> str:
    replicated = _replicated(p)
    sums, staged = (
        bound_sum(replicated, int(p["f"]), beta=p["beta"]),
        apart(p["alpha"], p["beta"]).staged(replicated, p["f"]),
    )
    return (
        f"stages and longest message of a plan, in the printed cost; at the first point {_bound(p):.3g} s, the "
        f"all-reduce (G2) {sums:.3g} s more, and Algorithm 2's stages, one sender at a time, take {staged:.3g} s"
    )


def all_products_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_calls(p) * _bound(p) for p in question.points]], _beside(question.points[0])


def summed(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        values.append(int(even(p["n"], placement.parts, 1, placement).all_reduce_rows.max()) * p["f"])
    return [values], "what the largest block row has"


def partitions(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[Placement.of(p["P"], p["c"]).parts for p in question.integer_points()]], "block rows of the grid"


def amplified(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    def extra(width: int) -> float:
        more, less = (bound_1d(even(4000, 4, cut), width, alpha=0.0, beta=1.0) for cut in (101, 100))
        return more - less

    return [[extra(p["f"]) / extra(1) for p in question.integer_points()]], "one more row in every pair's cut"


def volume_bound(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for p in (16, 32, 64, 128, 256):
        size = MEGABYTE * sent(lab, p)["average"]
        latency = apart(lab.machine.between.latency, 1e-30).all_to_all(even(p, p, 1), 1)
        cases.append([latency, size / lab.machine.between.bandwidth])
    note = "seconds: Table 2's averages on the stand-in, over one adapter; 4 microseconds a message"
    return cases, f"{note}; on 16 to 256 processes"


def broadcast_and_pairs(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    wires, size, cases = Wires(lab.machine, lab.stack), 1e8, []
    for p in (8, 32, 128):
        sent = [wires.all_to_all(_from_one(each), size) for each in (p, 2 * p)]
        broadcast = [wires.broadcast(size, range(each)) for each in (p, 2 * p)]
        cases.append([broadcast[1] / broadcast[0], math.log(2 * p) / math.log(p)])
        cases.append([sent[1] / sent[0], (2 * p - 1) / (p - 1)])
    note = "a block row of 100 MB on Perlmutter, from one process to all others, at twice as many over as many"
    return cases, f"{note}; a broadcast, then messages; ours is a chain beyond a node, whose steps are its ranks"


def _from_one(processes: int) -> Volumes:
    """One row of the first process goes to each other."""
    needed = np.zeros((processes, processes), dtype=np.int64)
    needed[1:, 0] = 1
    return Volumes(needed, np.ones(processes, dtype=np.int64), needed, Placement(processes))


# -- Table 3 -----------------------------------------------------------------------------------------------------------


def features(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[int(_drawn(question, lab).features.shape[1])]], "columns of the features that our stand-in's source draws"


def labels(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_drawn(question, lab).classes]], "labels of the vertices that our stand-in's source draws"


def _drawn(question: Question, lab: GraphLab) -> Any:
    return replace(lab.source(str(question.setting["dataset"])), vertices=2048).load(0)
