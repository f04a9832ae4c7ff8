"""Traffic of real ranks in a sparse product, seen by the probes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from baselines.cagnet import Oblivious
from suite.core.claim import Claim, Evidence
from suite.core.errors import InvalidRequest
from suite.data.graphs.generate import AmazonLike, RedditLike
from suite.gnn import partition_data, train
from suite.gnn.exchange import Aware, Exchange
from suite.gnn.local_block import LocalBlock
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.simple import Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.papers.common import claims
from suite.papers.common.answer import Papers, Question, function_of
from suite.papers.sparse_gnn import printed, probes, probes_runs, probes_watch
from suite.papers.sparse_gnn import probes_wire as wire
from suite.papers.sparse_gnn.cluster_runs import RANDOM, GraphLab

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


def asked(points: Any = (), terms: tuple[str, ...] = ()) -> Question:
    return Question({}, tuple(points), terms)


def published() -> dict[str, Claim]:
    return {claim.id: claim for claim in claims.load() if claim.paper == "sparse_gnn"}


def values(name: str, question: Question, **arguments: Any) -> list[list[float]]:
    home = wire if hasattr(wire, name) else probes_runs
    cases, told = getattr(home, name)(question, LAB, **arguments)
    assert told
    return [[float(value) for value in case] for case in cases]


# -- what a group sees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", wire.FORMS)
def test_rows_are_those_that_the_other_part_needs(form: str) -> None:
    (first, second), z = probes_watch.multiplied(small(), AWARE, form=form)
    assert first.rows == {1: 2}
    assert second.rows == {0: 1}
    assert first.came == {1: [2]}
    assert second.came == {0: [0, 1]}
    assert (first.bytes, second.bytes) == (16, 8)  # of one float64 a row
    assert [float(value) for part in z for value in part.ravel()] == [2.0, 3.0, 3.0, 4.0]


def test_a_broadcast_is_whole_and_goes_to_every_other() -> None:
    wires, _ = probes_watch.multiplied(small(), CAGNET)
    assert [one.came for one in wires] == [{1: [2, 3]}, {0: [0, 1]}]
    assert [one.broadcasts for one in wires] == [2, 2]
    assert [one.bytes for one in wires] == [16, 16]


def test_replicas_sum_their_rows_once() -> None:
    wires, z = probes_watch.multiplied(small(c=2), AWARE)
    assert [(ranks, words) for one in wires for ranks, words, _ in one.sums] == [
        *2 * [((0, 1), 2)],
        *2 * [((2, 3), 2)],
    ]
    assert z[0].tolist() == z[1].tolist() == [[2.0], [3.0]]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_oblivious_product_sends_whole_block_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"n": 10, "P": 4}, {"n": 7, "P": 2}])
    assert values("oblivious", question) == [[30, 7]]

    def shorter(self: Any) -> list[int]:
        return [q for q in Placement.stages(self.placement, self.block.rank) if q]

    plain = Oblivious.configure

    def configure(self: Any, **given: Any) -> None:
        plain(self, **given)
        self.stages = shorter(self)

    monkeypatch.setattr(Oblivious, "configure", configure)
    assert values("oblivious", question)[0][1] == 3  # of two parts, only what the second sends


def test_an_aware_product_sends_the_named_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(named == came for named, came in values("aware", asked()))
    plain = ExchangePlan.needs
    # one row too many of each other part
    monkeypatch.setattr(
        ExchangePlan, "needs", lambda self, i, q: plain(self, i, q) if i == q else np.union1d(plain(self, i, q), [0])
    )
    assert any(named != came for named, came in values("aware", asked()))


def test_less_is_sent_in_most_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked(terms=("sparsity_aware", "cagnet"))
    found = values("less", question, grids=[[2, 1], [8, 2]])
    assert len(found) == 3 * 2 * 2
    assert all(ours <= theirs for ours, theirs in found)
    monkeypatch.setattr(
        ExchangePlan, "needs", lambda self, i, q: np.arange(self.offsets[q + 1] - self.offsets[q], dtype=np.int64)
    )
    whole = values("less", question, grids=[[2, 1]])
    assert all(ours == theirs for ours, theirs in whole)


def test_only_a_directed_graph_sends_other_rows_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values("backward", asked())
    assert len(found) == 3 * 30
    assert all(ahead == back for ahead, back in found[:60])
    assert any(ahead != back for ahead, back in found[60:])
    assert [sum(column) for column in zip(*found[60:], strict=True)] == [8 * 619, 8 * 638]
    monkeypatch.setattr(wire, "sorted_transpose", lambda matrix: matrix)
    assert all(ahead == back for ahead, back in values("backward", asked()))


def test_one_replica_is_the_1d_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values("c1_is_1d", asked())
    assert len(found) == 128 * 3 + 4 + 1
    np.testing.assert_allclose([a for a, _ in found], [b for _, b in found], rtol=1e-12)
    plain = Exchange.__call__

    def summed(self: Any, x: Any) -> Any:
        z = plain(self, x)
        self.replicas.all_reduce(z).wait()
        return z

    monkeypatch.setattr(Exchange, "__call__", summed)
    assert values("c1_is_1d", asked())[-1] == [1, 5]


def test_the_sum_over_a_row_has_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"n": 24, "P": 8, "c": 2, "f": 5}, {"n": 36, "P": 18, "c": 3, "f": 1}])
    assert values("summed", question) == [[30, 6], [30, 6]]  # 24 / 4 * 5, 36 / 6
    monkeypatch.setattr(
        Exchange, "__call__", lambda self, x: self.multiply(x) if self.block.rank else self.multiply(x.clone())
    )
    assert np.isnan(values("summed", question)).all()  # nobody sums


def test_stages_are_what_a_rank_takes_part_in(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"P": 16, "c": 2}, {"P": 18, "c": 3}])
    assert values("stages", question) == [[4, 2], [4, 2]]
    monkeypatch.setattr(
        Placement, "columns", property(lambda self: np.zeros((self.parts, self.parts), dtype=int)), raising=True
    )
    assert values("stages", asked([{"P": 4, "c": 2}]))[0] != [1]


def test_a_grid_holds_each_block_row_c_times(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"P": 8, "c": 2}, {"P": 9, "c": 3}])
    assert values("grid", question) == [[4, 3]]
    monkeypatch.setattr(Exchange, "__call__", lambda self, x: self.multiply(x))
    assert values("grid", question) == [[0, 0]]


# -- trainings ---------------------------------------------------------------------------------------------------------


def test_a_rank_brings_one_matrix_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"f": 5}, {"f": 8}])
    assert values("weight_gradient", question) == [[25, 64]]
    plain = train.Trainer.gradients

    def twice(self: Any) -> float:
        plain(self)
        return plain(self)

    monkeypatch.setattr(train.Trainer, "gradients", twice)
    assert values("weight_gradient", question) == [[50, 128]]


def test_what_ranks_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = published()["sparse_gnn.sec4.memory"].points[:1]
    assert values("held", asked([point])) == [[3264 + 192 * 16 * 2]]
    with pytest.raises(InvalidRequest, match="3264 entries"):
        values("held", asked([{**point, "nnz": 5}]))
    plain = Aware.matrices.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Aware, "matrices", property(lambda self: [*plain(self), *plain(self)]))
    assert values("held", asked([point])) == [[2 * 3264 + 192 * 16 * 2]]


def test_phases_add_up() -> None:
    ((spmm, dense, rest),) = values("phases", asked(), graphs=["amazon"], vertices=2048, epochs=2)
    assert min(spmm, dense, rest) > 0


def test_convergence_is_the_first_epoch_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = iter([10.0, 50.0, 98.0, 99.5, 100.0, 97.0])
    monkeypatch.setattr(train.Trainer, "score", lambda self, mask="validation": {"top_1": next(curve)})
    options = ["graph=planted", "graph.source.vertices=256", "graph.source.blocks=8"]
    assert values("to_converge", asked(), graph_options=options, epochs=6, within=0.01) == [[4]]


def test_a_run_asks_its_partitioner_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert values("once", asked(), epochs=1) == [[1], [1]]
    plain = partition_data.partition_of

    def twice(config: Any, k: int) -> Any:
        plain(config.model_copy(update={"reports": f"{config.reports}/other"}), k)
        return plain(config, k)

    monkeypatch.setattr(partition_data, "partition_of", twice)
    assert values("once", asked(), epochs=1) == [[2], [2]]


def test_a_run_asks_for_as_many_parts_as_block_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked([{"P": 16, "c": 2}, {"P": 18, "c": 3}])
    assert values("partitions", question) == [[8, 6]]
    monkeypatch.setattr(partition_data, "placement_of", lambda config: Placement(config.grid.build().size))
    assert values("partitions", question) == [[16, 18]]


def test_both_forms_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked(terms=("cagnet", "sparsity_aware"))
    found, _ = probes.accuracy(question, LAB)
    assert len(found) == 2 * 2 * 2 * probes.EPOCHS
    np.testing.assert_allclose([a for a, _ in found], [b for _, b in found], rtol=1e-9)
    probes.trained.cache_clear()
    plain = Aware._staged
    monkeypatch.setattr(Aware, "_staged", lambda self, x, given, halo: 2 * plain(self, x, given, halo))
    try:
        broken, _ = probes.accuracy(question, LAB)
    finally:
        probes.trained.cache_clear()
    assert sum(a != pytest.approx(b, rel=1e-9) for a, b in broken) >= probes.EPOCHS


# -- stand-ins ---------------------------------------------------------------------------------------------------------


def test_rows_on_stand_ins_are_those_of_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [["amazon", 4], ["reddit", 2]]
    partitioners = [RANDOM, "metis"]
    found = values("by_partitioner", asked(), cases=cases, partitioners=partitioners)
    assert found == [[LAB.counted(graph, name, k).total for name in partitioners] for graph, k in cases]
    busiest = values("by_partitioner", asked(), cases=cases, partitioners=partitioners, statistic="busiest")
    assert busiest == [[LAB.counted(graph, name, k).send.max() for name in partitioners] for graph, k in cases]
    gain = values("little_gain", asked(), cases=cases, share=0.25)
    assert gain == [
        [LAB.counted(graph, RANDOM, k).total, LAB.matrix(graph).shape[0] * (k - 1) / 4] for graph, k in cases
    ]
    monkeypatch.setattr(wire, "multiplied", lambda plan, exchange: ([probes_watch.Wire(rows={0: 1})], []))
    wire._sent.cache_clear()
    try:
        assert values("by_partitioner", asked(), cases=cases, partitioners=[RANDOM]) == [[1], [1]]
    finally:
        wire._sent.cache_clear()


# -- printed cells -----------------------------------------------------------------------------------------------------


def test_printed_cells_against_each_other() -> None:
    found = published()
    papers = Papers(found, {}, {})
    name = "sparse_gnn.table2.{}.p_16"
    ((percent,),) = printed.imbalance(asked(), papers, maximum=name.format("maximum"), average=name.format("average"))[
        0
    ]
    assert float(percent) == pytest.approx(100 * (333.5 / 199.6 - 1))
    edges, vertices = "sparse_gnn.table3.reddit.edges", "sparse_gnn.table3.reddit.vertices"
    arguments = {"of": [[edges, ""]], "over": [[vertices, f"{vertices} * {vertices}"]]}
    assert printed.per(asked(), papers, **arguments)[0] == [
        [114848857 / 232965, pytest.approx(1 / 232965**2)]  # type: ignore[list-item]
    ]
    calls = {"total": "sparse_gnn.sec4.1.comm_total_1d", "one": "sparse_gnn.sec4.1.comm_one_spmm_1d"}
    ((two, five),) = printed.times(asked([{"L": 2}, {"L": 5}]), papers, **calls)[0]
    assert (two, five) == (pytest.approx(4), pytest.approx(10))
    halved = replace(found[calls["total"]], expression=f"({found[calls['total']].expression})/2")
    other = Papers({**found, calls["total"]: halved}, {}, {})
    assert printed.times(asked([{"L": 2}]), other, **calls)[0] == [[pytest.approx(2)]]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_answers_of_one_claim_are_of_different_figures() -> None:
    """A record keeps one value by claim."""
    for claim in published().values():
        figures = Counter(row.figure for row in claim.answers if row.figure)
        assert max(figures.values(), default=1) == 1, claim.id


def test_printed_rows_read_other_claims_alone() -> None:
    found = published()
    papers = Papers(found, {}, {})
    asked_of = [(c, row) for c in found.values() for row in c.answers if row.evidence is Evidence.PRINTED]
    assert len(asked_of) == 5 + 4 + 1 + 3  # imbalances, what is said of them, products, densities
    for claim, row in asked_of:
        cases, _ = function_of(row)(Question.of(claim), papers.without(claim.id), **row.arguments)
        assert cases


def test_shares_of_parts_without_needs_send_nothing() -> None:
    plan = ExchangePlan.build(csr_array(np.eye(4)), np.array([0, 0, 1, 1]), Placement(2))
    assert [int(LocalBlock.from_plan(plan, rank).send_counts.sum()) for rank in range(2)] == [0, 0]
    wires, _ = probes_watch.multiplied(plan, AWARE, form="fused")
    assert [one.bytes for one in wires] == [0, 0]
