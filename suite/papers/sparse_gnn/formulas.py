"""The paper's formulas, compared with counts from plans, grids and the message model.

No machine and no stand-in is involved: each point of a formula becomes a plan of that size, and the message model runs
on links with the latency and bandwidth of the point. Claims on training are checked by real training on threads
(suite.papers.sparse_gnn.measured)."""

from __future__ import annotations

import math
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
from suite.papers.sparse_gnn.closed_forms import bound_1_5d, bound_1d
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


def products(layers: int) -> int:
    """Sparse products as Section 2.1 prints an epoch (G4); model.epoch=lean keeps the first layer's product."""
    return len(GCN(layers).products(300, 24))


def one_product(processes: int, cut: int, width: int, alpha: float, beta: float) -> float:
    """Seconds of an exchange of equal volumes by all pairs; a process sends one message after another."""
    return alpha_beta_network(alpha, beta).all_to_all(even(processes * cut, processes, cut), width)


def all_products(layers: int, width: int, **exchange: Any) -> float:
    """The products of an epoch of square layers (G4), each with an exchange of equal volumes by all pairs."""
    return _products_per_epoch(layers, width) * one_product(width=width, **exchange)


def _products_per_epoch(layers: int, width: int) -> int:
    return len(GCN(layers, width).products(width, width))


def one_product_on_a_grid(processes: int, c: int, cut: int, width: int, alpha: float, beta: float) -> float:
    """Printed cost with the stages and longest message of a plan, without the all-reduce (G2).

    Algorithm 2's stages have one sender at a time and take longer.
    """
    volumes = even(processes * cut, processes // c, cut, Placement.of(processes, c))
    return bound_1_5d(volumes, width, alpha=alpha, beta=beta)


def all_products_on_a_grid(layers: int, width: int, **exchange: Any) -> float:
    """Printed cost of the products of an epoch of square layers (G4) on a grid, without the all-reduce (G2)."""
    return _products_per_epoch(layers, width) * one_product_on_a_grid(width=width, **exchange)


def cut_row_cost_ratio(width: int) -> float:
    """Cost of one more row in every pair's cut, over that of a row of one word."""

    def row_cost(words: int) -> float:
        more, less = (bound_1d(even(4000, 4, cut), words, alpha=0.0, beta=1.0) for cut in (101, 100))
        return more - less

    return row_cost(width) / row_cost(1)


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


def features(question: Question, lab: GraphLab) -> Cases:
    """Feature columns drawn by our stand-in's source."""
    return [[int(_stand_in(question, lab).features.shape[1])]]


def labels(question: Question, lab: GraphLab) -> Cases:
    """Labels drawn by our stand-in's source."""
    return [[_stand_in(question, lab).classes]]


def _stand_in(question: Question, lab: GraphLab) -> Any:
    return replace(lab.source(str(question.setting["dataset"])), vertices=2048).load(0)
