"""Probes for the traffic of a sparse product: rows, bytes and sums of real ranks.

Ranks are threads that run the same exchanges as training (suite.papers.sparse_gnn.measured_watch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def oblivious(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Distinct rows that ranks receive from others."""
    values = []
    for p in question.integer_points():
        matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
        traffics, _ = run_product(
            ExchangePlan.build(matrix, Block().parts(matrix, p["P"], 0), Placement(p["P"])), _cagnet(lab)
        )
        values.append(sum(len(set(rows)) for traffic in traffics for rows in traffic.received.values()))
    return [values], "rows received by threads in CAGNET's exchange, identified by their numbers"


def aware(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Two cases per pair of processes: rows received, and received rows that the plan's nonzero columns name."""
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
    return cases, "threads, fused and staged; three matrices in a random order, five processes"


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


def c1_is_1d(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """1D by Algorithm 1 on the undivided matrix, and 1.5D by the exchange on a grid with c = 1."""
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
    return [*cases, [1, 1 + sums]], "entries of the product, bytes sent, and 1 plus the sums over replicas"


# -- sums and stages ---------------------------------------------------------------------------------------------------


def all_reduce_words(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Words of the all-reduce over a grid row, per form; nan if ranks differ or another group sums."""
    cases = []
    for form in FORMS:
        values = []
        for p in question.integer_points():
            placement = Placement.of(p["P"], p["c"])
            matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
            plan = ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)
            traffics, _ = run_product(plan, _aware(lab), p["f"], form)
            rows = [placement.row(placement.coordinates(rank)[0]) for rank in range(placement.processes)]
            word_counts = {
                words if ranks == rows[rank] else -1
                for rank, traffic in enumerate(traffics)
                for ranks, words, _ in traffic.sums
            }
            once = all(len(traffic.sums) == 1 for traffic in traffics)
            values.append(word_counts.pop() if len(word_counts) == 1 and once else np.nan)
        cases.append(values)
    return cases, "words of every thread's one all-reduce over its grid row, fused and staged"


def stages(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Broadcasts that a rank takes part in, and block rows that it reads, its own included if it multiplies it."""
    broadcasts: list[float] = []
    block_rows: list[float] = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        full = csr_array(np.ones((placement.parts, placement.parts)))
        plan = ExchangePlan.build(full, np.arange(placement.parts), placement)
        for exchange, counts in ((_cagnet(lab), broadcasts), (_aware(lab), block_rows)):
            traffics, _ = run_product(plan, exchange)
            own_stages = [
                placement.coordinates(rank)[0] in placement.stages(rank) for rank in range(placement.processes)
            ]
            per_rank = {
                traffic.broadcasts if counts is broadcasts else len(traffic.received) + own
                for traffic, own in zip(traffics, own_stages, strict=True)
            }
            counts.append(per_rank.pop() if len(per_rank) == 1 else np.nan)
    return [broadcasts, block_rows], "broadcasts of every thread; block rows that it multiplies, on a full matrix"


def grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Groups of c ranks that sum one product and end with equal rows, distinct from every other group."""
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        matrix = csr_array(random_array((4 * p["P"],) * 2, density=0.1, rng=np.random.default_rng(0)))
        plan = ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)
        traffics, z = run_product(plan, _aware(lab))
        groups = {ranks for traffic in traffics for ranks, _, _ in traffic.sums}
        products = [{z[rank].tobytes() for rank in ranks} for ranks in groups if len(ranks) == p["c"]]
        values.append(len({distinct.pop() for distinct in products if len(distinct) == 1}))
    return [values], "groups of c threads that sum a product, each with distinct rows"


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
