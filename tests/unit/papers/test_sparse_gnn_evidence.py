"""Probes of the sparsity-aware GNN paper: traffic of real ranks in sparse products and training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.claims import load
from suite.claims.answer import Question
from suite.claims.claim import Claim
from suite.core.errors import InvalidRequest
from suite.data.graphs.generate import AmazonLike, RedditLike
from suite.gnn import train
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.simple import Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import LocalBlock
from suite.papers.sparse_gnn import measured_runs, measured_watch
from suite.papers.sparse_gnn import measured_wire as wire
from suite.papers.sparse_gnn.cluster_runs import RANDOM, GraphLab
from tests.support.published_runs import cases_of

CAGNET, AWARE = "baselines.cagnet.Oblivious", "suite.gnn.exchange.Aware"
LAB = GraphLab(
    None,  # type: ignore[arg-type]  # nothing here is simulated
    {},
    {"amazon": AmazonLike(vertices=2048), "reddit": RedditLike(vertices=512, degree=20)},
    {RANDOM: Random(), "metis": Metis()},
    None,
    {"cagnet": CAGNET, "sparsity_aware": AWARE},
)
# rows 0, 1 with part 0, rows 2, 3 with part 1; part 0 needs row 2, part 1 needs rows 0 and 1
SMALL = csr_array(np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0], [0, 1, 0, 1]], dtype=float))


def small(c: int = 1, parts: int = 2) -> ExchangePlan:
    return ExchangePlan.build(SMALL, np.array([0, 0, 1, 1]), Placement(parts, c))


def question_of(points: Any = (), terms: tuple[str, ...] = ()) -> Question:
    return Question({}, tuple(points), terms)


def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in load.claims() if claim.paper == "sparse_gnn"}


def values(name: str, question: Question, **arguments: Any) -> list[list[float]]:
    module = wire if hasattr(wire, name) else measured_runs
    cases = cases_of(getattr(module, name)(question, LAB, **arguments))
    return [[float(value) for value in case] for case in cases]


# -- traffic of a group ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", wire.FORMS)
def test_only_needed_rows_are_sent(form: str) -> None:
    (first, second), z = measured_watch.run_product(small(), AWARE, form=form)
    assert (first.rows, second.rows) == ({1: 2}, {0: 1})
    assert (first.received, second.received) == ({1: [2]}, {0: [0, 1]})
    assert (first.bytes, second.bytes) == (16, 8)  # one float64 per row
    assert [float(value) for part in z for value in part.ravel()] == [2.0, 3.0, 3.0, 4.0]


def test_broadcast_sends_whole_block_row_to_all() -> None:
    traffics, _ = measured_watch.run_product(small(), CAGNET)
    assert [traffic.received for traffic in traffics] == [{1: [2, 3]}, {0: [0, 1]}]
    assert [traffic.broadcasts for traffic in traffics] == [2, 2]
    assert [traffic.bytes for traffic in traffics] == [16, 16]


def test_replicas_sum_their_rows_once() -> None:
    traffics, z = measured_watch.run_product(small(c=2), AWARE)
    assert [(ranks, words) for traffic in traffics for ranks, words, _ in traffic.sums] == [
        *2 * [((0, 1), 2)],
        *2 * [((2, 3), 2)],
    ]
    assert z[0].tolist() == z[1].tolist() == [[2.0], [3.0]]


# -- answers -----------------------------------------------------------------------------------------------------------
# Broken exchanges change the verdicts of these answers in laws/test_mutations.py


def test_backward_volume_differs_only_for_directed_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = values("backward", question_of())
    assert len(cases) == 3 * 30
    assert all(forward == backward for forward, backward in cases[:60])
    assert [sum(column) for column in zip(*cases[60:], strict=True)] == [8 * 619, 8 * 638]
    monkeypatch.setattr(wire, "sorted_transpose", lambda matrix: matrix)
    assert all(forward == backward for forward, backward in values("backward", question_of()))


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_counts_by_hand() -> None:
    assert values("weight_gradient", question_of([{"f": 5}, {"f": 8}])) == [[25, 64]]
    (point,) = published()["sparse_gnn.sec4.memory"].points[:1]
    assert values("stored_entries", question_of([point])) == [[3264 + 192 * 16 * 2]]
    with pytest.raises(InvalidRequest):
        values("stored_entries", question_of([{**point, "nnz": 5}]))
    assert values("partitioner_calls", question_of(), epochs=1) == [[1], [1]]
    ((spmm, dense, rest),) = values("phases", question_of(), graphs=["amazon"], vertices=2048, epochs=2)
    assert min(spmm, dense, rest) > 0


def test_convergence_is_first_epoch_near_best_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = iter([10.0, 50.0, 98.0, 99.5, 100.0, 97.0])
    monkeypatch.setattr(train.Trainer, "score", lambda self, mask="validation": {"top_1": next(curve)})
    options = ["graph=planted", "graph.source.vertices=256", "graph.source.blocks=8"]
    assert values("epochs_to_converge", question_of(), graph_options=options, epochs=6, within=0.01) == [[4]]


# -- stand-ins ---------------------------------------------------------------------------------------------------------


def test_rows_sent_on_stand_ins_equal_planned_volumes() -> None:
    cases = [["amazon", 4], ["reddit", 2]]
    arguments: dict[str, Any] = {"cases": cases, "partitioners": [RANDOM, "metis"]}
    counted = [[LAB.counted(graph, name, k) for name in (RANDOM, "metis")] for graph, k in cases]
    rows = values("by_partitioner", question_of(), **arguments)
    assert rows == [[volumes.total for volumes in case] for case in counted]
    busiest = values("by_partitioner", question_of(), **arguments, statistic="busiest")
    assert busiest == [[volumes.send.max() for volumes in case] for case in counted]
    rows = values("random_order_rows", question_of(), cases=cases, share=0.25)
    vertices = [LAB.matrix(graph).shape[0] for graph, _ in cases]
    assert rows == [[case[0].total, n * (k - 1) / 4] for case, n, (_, k) in zip(counted, vertices, cases, strict=True)]


def test_parts_without_cut_send_nothing() -> None:
    plan = ExchangePlan.build(csr_array(np.eye(4)), np.array([0, 0, 1, 1]), Placement(2))
    assert [int(LocalBlock.from_plan(plan, rank).send_counts.sum()) for rank in range(2)] == [0, 0]
    traffics, _ = measured_watch.run_product(plan, AWARE, form="fused")
    assert [traffic.bytes for traffic in traffics] == [0, 0]
