"""The paper's formulas, compared with counts from plans, grids and the message model.

No machine and no stand-in is involved: each point of a formula becomes a plan of that size, and the message model runs
on links with the latency and bandwidth of the point. Claims on training are checked by real training on threads
(suite.papers.sparse_gnn.measured)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, random_array

from suite.claims import trace
from suite.claims.answer import Cases, Question
from suite.data.graphs import operator
from suite.data.graphs.generate import RMAT, Planted
from suite.gnn.partition.simple import Block
from suite.gnn.plan import ExchangePlan, Placement, Volumes
from suite.papers.sparse_gnn.closed_forms import bound_1_5d, bound_1d, bound_sum
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.counts import MEGABYTE, table2_row
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.exchange import Wires
from suite.simulate.network.machine import Link, Machine
from suite.workload.gcn import GCN

IDEAL = Efficiency("ideal", 1.0)  # peak rates, no overheads


def even(vertices: int, k: int, cut: int, placement: Placement | None = None) -> Volumes:
    """Volumes of equal parts, each of which needs `cut` rows from every other."""
    needed = np.full((k, k), cut)
    np.fill_diagonal(needed, 0)
    sizes = np.bincount(Block().parts(csr_array((vertices, vertices)), k, 0), minlength=k)
    return Volumes(needed, sizes, needed, placement or Placement(k))


def alpha_beta_network(alpha: float, beta: float) -> Wires:
    """Network of one-device nodes: alpha seconds per message, beta seconds per word."""
    link = Link(alpha, 1 / beta)
    return Wires(Machine("points", 1, 1.0, {"float32": 1.0}, 1.0, link, link, 1, link), IDEAL)


def small_matrices() -> list[csr_array]:
    """An R-MAT graph, a planted partition and a directed random matrix."""
    trace.read("graph.small")
    rng = np.random.default_rng(0)
    directed = csr_array(random_array((200, 200), density=0.03, rng=rng, format="csr"))
    symmetric = [RMAT(vertices=512, degree=8), Planted(vertices=512, blocks=16, classes=8)]
    return [*(operator(source.load(0)) for source in symmetric), directed]


def nonzero_columns(plan: ExchangePlan, i: int, q: int) -> list[int]:
    """Nonzero columns of block (i, q), found in the dense block."""
    rows, columns = (slice(plan.offsets[part], plan.offsets[part + 1]) for part in (i, q))
    dense = plan.matrix[rows].toarray()[:, columns]
    return [int(plan.offsets[q] + column) for column in np.flatnonzero(dense.any(axis=0))]


# -- Section 4 ---------------------------------------------------------------------------------------------------------


def products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    products_by_point = [GCN(p["L"]).products(300, 24) for p in question.integer_points()]
    lean = [len(GCN(p["L"], epoch="lean").products(300, 24)) for p in question.integer_points()]
    note = f"as Section 2.1 prints an epoch (G4); model.shape.epoch=lean keeps the first layer's product: {lean}"
    return [[len(products) for products in products_by_point]], note


def one_product(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    note = "all pairs exchange equal volumes; a process sends one message after another"
    return [[_all_to_all(p) for p in question.points]], note


def _all_to_all(p: Mapping[str, float]) -> float:
    k, cut = int(p["P"]), int(p["cut"])
    return alpha_beta_network(p["alpha"], p["beta"]).all_to_all(even(k * cut, k, cut), p["f"])


def all_products(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    values = [_products_per_epoch(p) * _all_to_all(p) for p in question.points]
    return [values], "the products of an epoch of L square layers (G4)"


def _products_per_epoch(p: Mapping[str, float]) -> int:
    layers, width = int(p["L"]), int(p["f"])
    return len(GCN(layers, width).products(width, width))


def one_product_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_bound(p) for p in question.points]], _other_costs(question.points[0])


def _bound(p: Mapping[str, float]) -> float:
    return bound_1_5d(_replicated(p), int(p["f"]), alpha=p["alpha"], beta=p["beta"])


def _replicated(p: Mapping[str, float]) -> Volumes:
    processes, c, cut = (int(p[name]) for name in ("P", "c", "cut"))
    return even(processes * cut, processes // c, cut, Placement.of(processes, c))


def _other_costs(p: Mapping[str, float]) -> str:
    """Note on the costs that the printed formula leaves out, at one point."""
    replicated = _replicated(p)
    sums = bound_sum(replicated, int(p["f"]), beta=p["beta"])
    staged = alpha_beta_network(p["alpha"], p["beta"]).staged(replicated, p["f"])
    return (
        f"printed cost with the stages and longest message of a plan; at the first point {_bound(p):.3g} s; the "
        f"all-reduce (G2) adds {sums:.3g} s; Algorithm 2's stages with one sender at a time take {staged:.3g} s"
    )


def all_products_on_a_grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_products_per_epoch(p) * _bound(p) for p in question.points]], _other_costs(question.points[0])


def cut_row_cost_ratio(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    def row_cost(width: int) -> float:
        more, less = (bound_1d(even(4000, 4, cut), width, alpha=0.0, beta=1.0) for cut in (101, 100))
        return more - less

    return [[row_cost(p["f"]) / row_cost(1) for p in question.integer_points()]], "one more row in every pair's cut"


def volume_bound(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    cases = []
    for p in (16, 32, 64, 128, 256):
        size = MEGABYTE * table2_row(lab, p)["average"]
        latency = alpha_beta_network(lab.machine.between.latency, 1e-30).all_to_all(even(p, p, 1), 1)
        cases.append([latency, size / lab.machine.between.bandwidth])
    note = "seconds: Table 2's averages on the stand-in, over one adapter; 4 microseconds per message"
    return cases, f"{note}; on 16 to 256 processes"


def broadcast_and_pairs(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    network, size, cases = Wires(lab.machine, lab.efficiency()), 1e8, []
    for p in (8, 32, 128):
        messages = [network.all_to_all(_from_one(count), size) for count in (p, 2 * p)]
        broadcast = [network.broadcast(size, range(count)) for count in (p, 2 * p)]
        cases.append([broadcast[1] / broadcast[0], math.log(2 * p) / math.log(p)])
        cases.append([messages[1] / messages[0], (2 * p - 1) / (p - 1)])
    note = "a block row of 100 MB on Perlmutter, from one process to all others, at 2P over P processes"
    return cases, f"{note}; broadcasts, then messages; the modelled broadcast is a chain of ranks beyond a node"


def _from_one(processes: int) -> Volumes:
    """Volumes in which process 0 sends one row to every other."""
    needed = np.zeros((processes, processes), dtype=np.int64)
    needed[1:, 0] = 1
    return Volumes(needed, np.ones(processes, dtype=np.int64), needed, Placement(processes))


# -- Table 3 -----------------------------------------------------------------------------------------------------------


def features(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[int(_stand_in(question, lab).features.shape[1])]], "feature columns drawn by our stand-in's source"


def labels(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [[_stand_in(question, lab).classes]], "labels drawn by our stand-in's source"


def _stand_in(question: Question, lab: GraphLab) -> Any:
    return replace(lab.source(str(question.setting["dataset"])), vertices=2048).load(0)
