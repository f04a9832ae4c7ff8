"""Epoch of full-graph training against hand sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.gnn.plan import Placement, Volumes
from suite.simulate.full_graph import FullGraph
from suite.simulate.network.exchange import Wires
from suite.workload.gcn import GCN
from tests.support.modelled import efficiency, machine
from tests.support.refusals import refused

SHAPE = GCN(layers=3, width=16)
FEATURES, CLASSES = 300, 24
WHERE = machine(peak={"float32": 1e6}, memory_bandwidth=1e4)
REACHED = efficiency(traffic=0.5, launch=0.01)


def volumes(parts: int = 4, replication: int = 1) -> Volumes:
    """50 vertices and 40 entries a block; each part needs 5 rows of each other one."""
    needed = np.full((parts, parts), 5)
    np.fill_diagonal(needed, 0)
    return Volumes(needed, np.full(parts, 50), np.full((parts, parts), 40), Placement(parts, replication))


def graph(form: str = "fused", held: Volumes | None = None, **options: Any) -> FullGraph:
    return FullGraph(held or volumes(), SHAPE, FEATURES, CLASSES, form, **options)


def test_an_epoch_moves_what_its_products_multiply() -> None:
    """2 L products: H of 300, 16 and 16 columns forward, G of 24, 16 and 16 backward."""
    assert list(graph().widths) == [300, 16, 16, 24, 16, 16]
    assert list(graph(order="auto").widths) == [16] * 6
    assert len(graph(epoch="lean").widths) == 4
    assert list(graph().sent()) == [4 * 388 * 15] * 4
    assert list(graph("oblivious").sent()) == [4 * 388 * 150] * 4


def test_phases_are_the_sum_over_products() -> None:
    one, wires = graph(held=volumes(replication=2)), Wires(WHERE, REACHED)
    phases = one.seconds(WHERE, REACHED)
    assert phases.exchange == pytest.approx(sum(wires.all_to_all(one.volumes, 4 * w) for w in one.widths))
    assert phases.sums == pytest.approx(sum(wires.sum_rows(one.volumes, 4 * w) for w in one.widths))
    assert phases.products == pytest.approx(sum(one.product(WHERE, REACHED, w) for w in one.widths))
    column = one.volumes.placement.column(0)
    weights = sum(wires.all_reduce(4 * weights, column) for weights in (300 * 16, 16 * 16, 16 * 24))
    assert phases.weights == pytest.approx(weights)
    assert phases.seconds == pytest.approx(sum(phases.phases().values()))
    assert phases.communication == phases.exchange + phases.sums + phases.weights
    assert graph().seconds(WHERE, REACHED).sums == 0.0


DIAGONAL = Volumes(np.zeros((4, 4), int), np.full(4, 50), np.diag(np.full(4, 160)), Placement(4))
# 160 entries with 8 bytes each and a row of 10 values, 15 rows gathered and written, 50 rows of the result
ENGINE = 160 * (8 + 40) + 2 * 15 * 40 + 50 * 40
# four blocks: as many sums, read and written; three block rows of zeros, 15 rows copied there; 20 bytes each
OBLIVIOUS = 160 * (20 + 40) + 4 * 2 * 40 * 50
PUBLISHED = OBLIVIOUS + 2 * 40 * 15 + 150 * 40 + 2 * 15 * 40


@pytest.mark.parametrize(
    ("one", "moved", "launches"),
    [
        (graph(), ENGINE, 2),
        (graph(published=True), PUBLISHED, 13),
        (graph("oblivious", published=True), OBLIVIOUS, 4),
        # the fullest process decides
        (graph(held=replace(volumes(), nonzeros=volumes().nonzeros + np.diag([0, 0, 100, 0]))), ENGINE + 100 * 48, 2),
        # replicas do not share the entries of a block: one multiplies the diagonal block, the others wait
        *((graph(held=DIAGONAL.on_grid(Placement(4, c))), 160 * (8 + 40) + 50 * 40, 2) for c in (1, 2, 4)),
    ],
)
def test_seconds_of_a_sparse_product_by_hand(one: FullGraph, moved: int, launches: int) -> None:
    assert one.product(WHERE, REACHED, 10) == pytest.approx(moved / 5000 + launches * 0.01)


def test_dense_products_are_bound_by_flops_or_by_bytes() -> None:
    assert graph().dense(WHERE, REACHED, 300, 16) == pytest.approx(4 * 50 * 316 / 5000 + 0.01)  # 0.48 of flops
    slow = replace(WHERE, peak={"float32": 1e4})
    assert graph().dense(slow, REACHED, 300, 16) == pytest.approx(2 * 50 * 300 * 16 / 1e4 + 0.01)
    with refused(InvalidRequest, subject="traffic"):
        graph().seconds(WHERE, efficiency(traffic=0.0))


# -- memory ----------------------------------------------------------------------------------------------------------


def ring(parts: int, form: str = "fused", **options: Any) -> FullGraph:
    """A ring of parts, each of 50 vertices and 5 rows for each neighbour."""
    needed = np.zeros((parts, parts), int)
    for i in range(parts):
        needed[i, (i + 1) % parts] = needed[i, i - 1] = 5
    blocks = 8 * needed + np.diag(np.full(parts, 200))
    return graph(form, Volumes(needed, np.full(parts, 50), blocks, Placement(parts)), **options)


def test_memory_grows_with_own_rows_and_halo() -> None:
    """A process holds the same with four parts and with 64."""
    assert ring(4).peak() == ring(64).peak()
    for parts in (4, 64):
        assert ring(parts, "oblivious", published=True).memory()["rows"][0] == 4 * 300 * 50


def test_memory_by_hand() -> None:
    ours, theirs = graph().memory(), graph(published=True).memory()
    assert [kinds["graph"][0] for kinds in (ours, theirs)] == [160 * 8 + 51 * 4, 160 * 40]  # whole, and in blocks
    assert [kinds["rows"][0] for kinds in (ours, theirs)] == [4 * 300 * (15 + 15), 4 * 300 * (15 + 15 + 50)]
    assert theirs["gradient of features"][0] == 4 * 300 * 50
    assert ours["activations"][0] == 4 * 50 * (2 * (16 + 16 + 24) + 300)


def test_graph_that_does_not_fit_is_refused() -> None:
    one = graph()
    one.check_memory(replace(WHERE, memory=float(one.peak())))
    with refused(DoesNotFit, subject="of 4 processes") as raised:
        one.check_memory(replace(WHERE, memory=float(one.peak() - 1)))
    assert sum(each[0] for each in raised.value.memory.values()) == one.peak()


def test_a_directed_graph_sends_other_rows_backward() -> None:
    """Forward products of 300, 16 and 16 columns by one plan, backward ones of 24, 16 and 16 by another."""
    ahead = graph()
    back = replace(ahead.volumes, needed=2 * ahead.volumes.needed)
    both = replace(ahead, back=back)
    assert list(both.sent()) == [4 * (332 * 15 + 56 * 30)] * 4
    forward, backward = (graph(held=held).seconds(WHERE, REACHED).exchange for held in (ahead.volumes, back))
    assert forward < both.seconds(WHERE, REACHED).exchange < backward
    for kind in ("graph", "rows"):
        assert both.memory()[kind][0] == 2 * ahead.memory()[kind][0]
