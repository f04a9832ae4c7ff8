"""Probes for the traffic of a sparse product: rows, bytes and sums of real ranks.

Ranks are threads that run the same exchanges as training (suite.papers.sparse_gnn.measured_watch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import csr_array, random_array

from suite.claims.answer import Cases, Question
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.gnn.partition.simple import Block, Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import sorted_transpose
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.formulas import nonzero_columns, small_matrices
from suite.papers.sparse_gnn.measured import ZEROS, multiply_in_1d
from suite.papers.sparse_gnn.measured_watch import Traffic, run_product

FORMS = ("fused", "staged")  # of the sparsity-aware exchange


def _cagnet(lab: GraphLab) -> str:
    return lab.exchanges["cagnet"]


def _aware(lab: GraphLab) -> str:
    return lab.exchanges["sparsity_aware"]


# -- volumes -----------------------------------------------------------------------------------------------------------


def sparse(vertices: int, processes: int, c: int = 1) -> ExchangePlan:
    """Plan of a random matrix with four entries per row."""
    matrix = csr_array(random_array((vertices, vertices), density=4 / vertices, rng=np.random.default_rng(0)))
    placement = Placement.of(processes, c)
    return ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)


def oblivious(question: Question, lab: GraphLab) -> Cases:
    """Distinct rows that threads receive from others in CAGNET's exchange, identified by their numbers."""
    runs = [run_product(sparse(p["n"], p["P"]), _cagnet(lab))[0] for p in question.integer_points()]
    return [[sum(len(set(rows)) for each in run for rows in each.received.values()) for run in runs]]


def aware(question: Question, lab: GraphLab) -> Cases:
    """Two cases per pair of processes: rows received, and received rows that the plan's nonzero columns name. Threads,
    fused and staged; three matrices in a random order, five processes.
    """
    cases = []
    for matrix in small_matrices():
        plan = ExchangePlan.build(matrix, Random().parts(matrix, 5, 0), Placement(5))
        for form in FORMS:
            traffics, _ = run_product(plan, _aware(lab), form=form)
            for i in range(5):
                for q in range(5):
                    if i != q:
                        expected, received = set(nonzero_columns(plan, i, q)), traffics[i].received.get(q, [])
                        cases += [[len(expected), len(received)], [len(expected), len(expected & set(received))]]
    return cases


def bytes_by_system(
    question: Question, lab: GraphLab, *, grids: Sequence[Sequence[int]] = ((2, 1), (8, 1), (8, 2))
) -> tuple[Cases, str]:
    """Bytes that each system of the terms sends in a product. `grids` lists processes and replication."""
    cases = []
    for matrix in small_matrices():
        for partitioner in (Block(), Random()):
            for processes, c in grids:
                placement = Placement.of(processes, c)
                plan = ExchangePlan.build(matrix, partitioner.parts(matrix, placement.parts, 0), placement)
                by_system = [run_product(plan, lab.exchanges[term])[0] for term in question.terms]
                cases.append([sum(traffic.bytes for traffic in traffics) for traffics in by_system])
    ties = sum(a == b for a, b in cases)
    return cases, f"bytes sent by threads, 1D and 1.5D; {ties} ties"


def backward(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Bytes of the product by A^T, the forward one, and by A; one case per pair of processes."""
    cases, totals = [], []
    for matrix in small_matrices():
        parts = Random().parts(matrix, 6, 0)
        directions = [
            run_product(ExchangePlan.build(operand, parts, Placement(6)), _aware(lab))[0]
            for operand in (sorted_transpose(matrix), matrix)
        ]
        pairs = [(q, i) for q in range(6) for i in range(6) if i != q]
        cases += [[8 * traffics[q].rows.get(i, 0) for traffics in directions] for q, i in pairs]
        totals.append("{} and {}".format(*(sum(map(rows_sent, traffics)) for traffics in directions)))
    return cases, f"total rows, forward and backward: R-MAT {totals[0]}, planted {totals[1]}, directed {totals[2]}"


def c1_is_1d(question: Question, lab: GraphLab) -> Cases:
    """1D by Algorithm 1 on the undivided matrix, and 1.5D by the exchange on a grid with c = 1. Entries of the
    product, bytes sent, and 1 plus the sums over replicas.
    """
    matrix = operator(Planted(vertices=128, blocks=8, classes=4, features=12).load(0))
    plan = ExchangePlan.build(matrix, Random().parts(matrix, 4, 0), Placement.of(4, 1))
    traffics, z = run_product(plan, _aware(lab), width=3)
    x = np.random.default_rng(0).standard_normal((plan.vertices, 3))
    x[:, 0] = np.arange(plan.vertices)
    z_1d, sent_1d = multiply_in_1d(plan.matrix, plan.offsets, x)
    entries = zip(z_1d.ravel(), np.concatenate(z).ravel(), strict=True)
    sums = sum(len(traffic.sums) for traffic in traffics)
    cases: list[list[float]] = [[a or ZEROS, b or ZEROS] for a, b in entries]
    cases += [[sent_1d[i], traffics[i].bytes] for i in range(4)]
    return [*cases, [1, 1 + sums]]


# -- sums and stages ---------------------------------------------------------------------------------------------------


def all_reduce_words(question: Question, lab: GraphLab) -> Cases:
    """Words of every thread's one all-reduce over its grid row, fused and staged; nan if they differ."""

    def words_of(p: Mapping[str, int], form: str) -> float:
        plan = sparse(p["n"], p["P"], p["c"])
        traffics, _ = run_product(plan, _aware(lab), p["f"], form)
        rows = [[plan.placement.row(plan.placement.coordinates(rank)[0])] for rank in range(p["P"])]
        once_over_rows = [[ranks for ranks, _, _ in traffic.sums] for traffic in traffics] == rows
        return _common([words for traffic in traffics for _, words, _ in traffic.sums]) if once_over_rows else np.nan

    return [[words_of(p, form) for p in question.integer_points()] for form in FORMS]


def stages(question: Question, lab: GraphLab) -> Cases:
    """Broadcasts of every thread; block rows that it multiplies, on a full matrix, its own included."""
    broadcasts, block_rows = [], []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        full = csr_array(np.ones((placement.parts, placement.parts)))
        plan = ExchangePlan.build(full, np.arange(placement.parts), placement)
        broadcasts.append(_common([each.broadcasts for each in run_product(plan, _cagnet(lab))[0]]))
        own = [placement.coordinates(rank)[0] in placement.stages(rank) for rank in range(placement.processes)]
        received = [len(each.received) for each in run_product(plan, _aware(lab))[0]]
        block_rows.append(_common([a + b for a, b in zip(received, own, strict=True)]))
    return [broadcasts, block_rows]


def _common(counts: Sequence[int]) -> float:
    """The count of all ranks; nan if they differ."""
    return counts[0] if len(set(counts)) == 1 else np.nan


def grid(question: Question, lab: GraphLab) -> Cases:
    """Groups of c threads that sum a product, each with equal rows that are distinct from every other group's."""
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        matrix = csr_array(random_array((4 * p["P"],) * 2, density=0.1, rng=np.random.default_rng(0)))
        plan = ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)
        traffics, z = run_product(plan, _aware(lab))
        groups = {ranks for traffic in traffics for ranks, _, _ in traffic.sums}
        products = [{z[rank].tobytes() for rank in ranks} for ranks in groups if len(ranks) == p["c"]]
        values.append(len({distinct.pop() for distinct in products if len(distinct) == 1}))
    return [values]


# -- stand-ins ---------------------------------------------------------------------------------------------------------


def rows_sent(traffic: Traffic) -> int:
    return sum(traffic.rows.values())


@cache
def _rows_by_rank(lab: GraphLab, exchange: str, graph: str, partitioner: str, k: int) -> tuple[int, ...]:
    matrix = lab.matrix(graph)
    plan = ExchangePlan.build(matrix, lab.partition(graph, partitioner, k).parts, Placement(k))
    return tuple(map(rows_sent, run_product(plan, exchange)[0]))


def rows_by_rank(lab: GraphLab, system: str, graph: str, partitioner: str, k: int) -> tuple[int, ...]:
    """Rows that each thread sends in a product on an unscaled stand-in."""
    lab.source(graph)  # records the graph as read, also on a cache hit
    return _rows_by_rank(lab, lab.exchanges[system], graph, partitioner, k)


def random_order_rows(
    question: Question, lab: GraphLab, *, cases: Sequence[Sequence[Any]], share: float
) -> tuple[Cases, str]:
    """Rows sent in a random order, and `share` times the rows of the oblivious exchange.

    `cases` lists graphs with process counts.
    """
    rows = []
    for graph, k in cases:
        aware, oblivious = (
            sum(rows_by_rank(lab, system, graph, "random", k)) for system in ("sparsity_aware", "cagnet")
        )
        rows.append([aware, share * oblivious])
    return rows, f"rows sent by threads: {', '.join(f'{graph} on {k}' for graph, k in cases)}"


def by_partitioner(
    question: Question,
    lab: GraphLab,
    *,
    cases: Sequence[Sequence[Any]],
    partitioners: Sequence[str],
    statistic: str = "total",
) -> tuple[Cases, str]:
    """Rows sent with each partitioner, in the order of the terms; `statistic` is total or busiest (thread)."""
    summarise: Callable[[Sequence[int]], int] = {"total": sum, "busiest": max}[statistic]  # type: ignore[assignment]
    values = [
        [summarise(rows_by_rank(lab, "sparsity_aware", graph, name, k)) for name in partitioners] for graph, k in cases
    ]
    return values, f"rows sent by threads, {statistic}: {', '.join(f'{graph} on {k}' for graph, k in cases)}"
