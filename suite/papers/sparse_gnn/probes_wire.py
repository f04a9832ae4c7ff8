"""Probes for the traffic of real ranks in a sparse product: rows, bytes and sums.

Ranks are threads that run the exchanges a training runs (suite.papers.sparse_gnn.probes_watch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import csr_array, random_array

from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.gnn.partition.simple import Block, Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import sorted_transpose
from suite.papers.common.answer import Cases, Question
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.formulas import small_graphs
from suite.papers.sparse_gnn.probes import ZEROS, in_one_dimension
from suite.papers.sparse_gnn.probes_watch import multiplied

FORMS = ("fused", "staged")  # of the exchange of needed rows


def _cagnet(lab: GraphLab) -> str:
    return lab.exchanges["cagnet"]


def _aware(lab: GraphLab) -> str:
    return lab.exchanges["sparsity_aware"]


# -- volumes -----------------------------------------------------------------------------------------------------------


def oblivious(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Distinct rows that ranks get of others: whole block rows, if as many as there are."""
    values = []
    for p in question.integer_points():
        matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
        wires, _ = multiplied(
            ExchangePlan.build(matrix, Block().parts(matrix, p["P"], 0), Placement(p["P"])), _cagnet(lab)
        )
        values.append(sum(len(set(rows)) for wire in wires for rows in wire.came.values()))
    return [values], "rows that arrive at threads in CAGNET's exchange, each told by its number"


def aware(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """A pair of processes is two cases: how many rows arrive, and how many of those are the ones named."""
    cases = []
    for matrix in small_graphs():
        plan = ExchangePlan.build(matrix, Random().parts(matrix, 5, 0), Placement(5))
        for form in FORMS:
            wires, _ = multiplied(plan, _aware(lab), form=form)
            for i in range(5):
                for q in range(5):
                    if i != q:
                        expected, came = set(_columns(plan, i, q)), wires[i].came.get(q, [])
                        cases += [[len(expected), len(came)], [len(expected), len(expected & set(came))]]
    return cases, "threads, one call for all and stage by stage; three matrices in a random order, five processes"


def _columns(plan: ExchangePlan, i: int, q: int) -> list[int]:
    """Nonzero columns of block (i, q), looked up in the dense block."""
    rows, columns = (slice(plan.offsets[at], plan.offsets[at + 1]) for at in (i, q))
    return [int(plan.offsets[q] + at) for at in np.flatnonzero(plan.matrix[rows].toarray()[:, columns].any(axis=0))]


def less(
    question: Question, lab: GraphLab, *, grids: Sequence[Sequence[int]] = ((2, 1), (8, 1), (8, 2))
) -> tuple[Cases, str]:
    """grids: processes and replication of each."""
    cases = []
    for matrix in small_graphs():
        for partitioner in (Block(), Random()):
            for processes, c in grids:
                placement = Placement.of(processes, c)
                plan = ExchangePlan.build(matrix, partitioner.parts(matrix, placement.parts, 0), placement)
                both = [multiplied(plan, lab.exchanges[term])[0] for term in question.terms]
                cases.append([sum(wire.bytes for wire in wires) for wires in both])
    ties = sum(a == b for a, b in cases)
    return cases, f"bytes that threads hand over, 1D and 1.5D; {ties} ties"


def backward(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Of A^T, the forward product, and of A; a case per pair of processes."""
    cases, totals = [], []
    for matrix in small_graphs():
        parts = Random().parts(matrix, 6, 0)
        ahead, back = (
            multiplied(ExchangePlan.build(one, parts, Placement(6)), _aware(lab))[0]
            for one in (sorted_transpose(matrix), matrix)
        )
        pairs = [(q, i) for q in range(6) for i in range(6) if i != q]
        cases += [[8 * wires[q].rows.get(i, 0) for wires in (ahead, back)] for q, i in pairs]
        totals.append("{} and {}".format(*(sum(sum(wire.rows.values()) for wire in wires) for wires in (ahead, back))))
    return cases, f"rows in all, forward and backward: R-MAT {totals[0]}, planted {totals[1]}, directed {totals[2]}"


def c1_is_1d(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """1D by Algorithm 1 on the columns of a whole matrix, 1.5D by the exchange on a grid with c = 1."""
    matrix = operator(Planted(vertices=128, blocks=8, classes=4, features=12).load(0))
    plan = ExchangePlan.build(matrix, Random().parts(matrix, 4, 0), Placement.of(4, 1))
    wires, z = multiplied(plan, _aware(lab), width=3)
    x = np.random.default_rng(0).standard_normal((plan.vertices, 3))
    x[:, 0] = np.arange(plan.vertices)
    theirs, sent = in_one_dimension(plan.matrix, plan.offsets, x)
    entries = zip(theirs.ravel(), np.concatenate(z).ravel(), strict=True)
    sums = sum(len(wire.sums) for wire in wires)
    cases: list[list[float]] = [[a or ZEROS, b or ZEROS] for a, b in entries]
    cases += [[sent[i], wires[i].bytes] for i in range(4)]
    return [*cases, [1, 1 + sums]], "bytes, and one more than the sums over replicas, last"


# -- sums and stages ---------------------------------------------------------------------------------------------------


def summed(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Words of the sum over a process row, of every form; nan where ranks differ, or another group sums."""
    cases = []
    for form in FORMS:
        values = []
        for p in question.integer_points():
            placement = Placement.of(p["P"], p["c"])
            matrix = csr_array(random_array((p["n"], p["n"]), density=4 / p["n"], rng=np.random.default_rng(0)))
            plan = ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)
            wires, _ = multiplied(plan, _aware(lab), p["f"], form)
            rows = [placement.row(placement.coordinates(rank)[0]) for rank in range(placement.processes)]
            alike = {
                words if ranks == rows[at] else -1 for at, wire in enumerate(wires) for ranks, words, _ in wire.sums
            }
            values.append(alike.pop() if len(alike) == 1 and all(len(wire.sums) == 1 for wire in wires) else np.nan)
        cases.append(values)
    return cases, "words of the one sum that every thread brings to its process row, in one call and stage by stage"


def stages(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Broadcasts that a rank takes part in, and block rows that it has rows of, its own where it multiplies them."""
    broadcasts: list[float] = []
    senders: list[float] = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        full = csr_array(np.ones((placement.parts, placement.parts)))
        plan = ExchangePlan.build(full, np.arange(placement.parts), placement)
        for exchange, moved in ((_cagnet(lab), broadcasts), (_aware(lab), senders)):
            wires, _ = multiplied(plan, exchange)
            own_stages = [
                placement.coordinates(rank)[0] in placement.stages(rank) for rank in range(placement.processes)
            ]
            each = {
                wire.broadcasts if moved is broadcasts else len(wire.came) + mine
                for wire, mine in zip(wires, own_stages, strict=True)
            }
            moved.append(each.pop() if len(each) == 1 else np.nan)
    return [broadcasts, senders], "broadcasts of every thread; block rows that it multiplies, on a graph without zeros"


def grid(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """Groups of c ranks that add up one product and end with the same rows of it, no two groups with the same."""
    values = []
    for p in question.integer_points():
        placement = Placement.of(p["P"], p["c"])
        matrix = csr_array(random_array((4 * p["P"],) * 2, density=0.1, rng=np.random.default_rng(0)))
        plan = ExchangePlan.build(matrix, Block().parts(matrix, placement.parts, 0), placement)
        wires, z = multiplied(plan, _aware(lab))
        groups = {ranks for wire in wires for ranks, _, _ in wire.sums}
        alike = {ranks: {z[rank].tobytes() for rank in ranks} for ranks in groups if len(ranks) == p["c"]}
        values.append(len({each.pop() for each in alike.values() if len(each) == 1}))
    return [values], "groups of c threads that sum a product, each with rows that no other group has"


# -- stand-ins ---------------------------------------------------------------------------------------------------------


@cache
def _sent(lab: GraphLab, exchange: str, graph: str, partitioner: str, k: int) -> tuple[int, ...]:
    matrix = lab.matrix(graph)
    plan = ExchangePlan.build(matrix, lab.partition(graph, partitioner, k).parts, Placement(k))
    return tuple(sum(wire.rows.values()) for wire in multiplied(plan, exchange)[0])


def sent(lab: GraphLab, system: str, graph: str, partitioner: str, k: int) -> tuple[int, ...]:
    """Rows that each thread hands over in a product on a stand-in itself."""
    lab.source(graph)  # noted as read
    return _sent(lab, lab.exchanges[system], graph, partitioner, k)


def little_gain(
    question: Question, lab: GraphLab, *, cases: Sequence[Sequence[Any]], share: float
) -> tuple[Cases, str]:
    """cases: a graph and a count of processes each; share: of the volume of the oblivious exchange."""
    gains = []
    for graph, k in cases:
        ours, theirs = (sum(sent(lab, system, graph, "random", k)) for system in ("sparsity_aware", "cagnet"))
        gains.append([ours, share * theirs])
    return gains, f"rows that threads hand over: {', '.join(f'{graph} on {k}' for graph, k in cases)}"


def by_partitioner(
    question: Question,
    lab: GraphLab,
    *,
    cases: Sequence[Sequence[Any]],
    partitioners: Sequence[str],
    statistic: str = "total",
) -> tuple[Cases, str]:
    """Rows sent, in all or by the busiest thread, with each partitioner in the order of the terms."""
    of: Callable[[Sequence[int]], int] = {"total": sum, "busiest": max}[statistic]  # type: ignore[assignment]
    values = [[of(sent(lab, "sparsity_aware", graph, name, k)) for name in partitioners] for graph, k in cases]
    return values, f"rows that threads hand over, {statistic}: {', '.join(f'{graph} on {k}' for graph, k in cases)}"
