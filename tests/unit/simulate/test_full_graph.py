"""Epoch of full-graph training and its row exchange against hand sums.

Machines have round numbers, so that every time is counted by hand; NCCL's latencies are asked for by name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName
from suite.gnn.plan import Placement, Volumes
from suite.simulate.full_graph import FullGraph
from suite.simulate.network.exchange import CHAINS, FORMS, RINGS, TREES, Wires
from suite.simulate.network.machine import Link, Machine
from suite.workload.gcn import GCN
from tests.support.modelled import efficiency, machine
from tests.support.refusals import refused
from tests.support.volumes import equal

SHAPE = GCN(layers=3, width=16)
FEATURES, CLASSES = 300, 24
WHERE = machine(peak={"float32": 1e6}, memory_bandwidth=1e4)
REACHED = efficiency(traffic=0.5, launch=0.01)


FIVE = equal(4, 5, rows=50, entries=40)  # four parts of 50 vertices, 40 entries a block


def graph(form: str = "fused", held: Volumes | None = None, shape: GCN = SHAPE, **options: Any) -> FullGraph:
    return FullGraph(held or FIVE, shape, FEATURES, CLASSES, form, **options)


def test_an_epoch_moves_what_its_products_multiply() -> None:
    """2 L products: H of 300, 16 and 16 columns forward, G of 24, 16 and 16 backward."""
    assert list(graph().widths) == [300, 16, 16, 24, 16, 16]
    assert list(graph(shape=GCN(order="auto")).widths) == [16] * 6
    assert len(graph(shape=GCN(epoch="lean")).widths) == 4
    assert list(graph().sent()) == [4 * 388 * 15] * 4
    assert list(graph("oblivious").sent()) == [4 * 388 * 150] * 4


def test_phases_are_the_sum_over_products() -> None:
    one, wires = graph(held=FIVE.on_grid(Placement(4, 2))), Wires(WHERE, REACHED)
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
        (graph(held=replace(FIVE, nonzeros=FIVE.nonzeros + np.diag([0, 0, 100, 0]))), ENGINE + 100 * 48, 2),
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


# -- memory ---------------------------------------------------------------------------------------------------------


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


# -- row exchange ------------------------------------------------------------------------------------------------------


def flat(latency: float = 0.0) -> Machine:
    """One device a node, 10 bytes/s between any two."""
    return machine(devices_per_node=1, between=Link(latency, 10.0))


def nodes_of_four(**links: Link) -> Machine:
    """Four devices and four adapters of 10 bytes/s a node, 100 bytes/s between two devices of a node."""
    return machine(devices_per_node=4, adapters=4, **links)


WIRES = efficiency(adapters=4)
FOURS = Wires(nodes_of_four(), WIRES)
CALLS = Wires(flat(1.0), efficiency(adapters=1, collective=0.5))
FAST = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)  # four adapters: 40 GB/s
LL, SIMPLE = CHAINS


def test_seconds_by_hand() -> None:
    columns, empty = equal(8, 5, replication=2), equal(8, 0, replication=2)
    far, plain = Wires(flat(0.25), WIRES), Wires(flat(), efficiency(adapters=1))
    pairs = Wires(nodes_of_four(), efficiency(adapters=4, pairs=0.5))
    ring = RINGS[1].base + 16 * RINGS[1].within + 6 * RINGS[1].between
    for row, (seconds, expected) in enumerate(
        (
            # all to all: one message after another
            (far.all_to_all(equal(2, 3), 12.0), 0.25 + 3 * 12 / 10),
            (far.all_to_all(equal(64, 12), 12.0), 63 * (0.25 + 12 * 12 / 10)),
            # eight processes on two nodes: 4 others behind the adapter, 3 in the node, each on a link of its own
            (FOURS.all_to_all(equal(8, 5), 1.0), 4 * 5 / 10),
            (FOURS.all_to_all(equal(4, 5), 1.0), 5 / 100),
            # two devices behind one adapter: the node's 2 x 2 x 5 rows leave through it
            (Wires(machine(), efficiency(adapters=1)).all_to_all(equal(4, 5), 1.0), 20 / 10),
            # the share of pairs is of messages alone
            (pairs.all_to_all(equal(8, 5), 1.0), 2 * 4 * 5 / 10),
            (pairs.stages(equal(8, 5), 1.0), FOURS.stages(equal(8, 5), 1.0)),
            # 1.5D, 8 parts on 2 columns: a column has 4 stages, in each one process sends 7 messages one after another
            (plain.staged(columns, 1.0), 4 * 7 * 5 / 10),
            (plain.all_to_all(columns, 1.0), 7 * 5 / 10),
            (FOURS.staged(columns, 1.0), 4 * 6 * 5 / 10),  # one of the seven is on the same node
            (CALLS.staged(columns, 1.0), 4 * (0.5 + 7 * 1.0 + 3.5)),
            # Algorithm 2 sends without asking how many rows there are; all to all skips what is empty
            (CALLS.staged(empty, 1.0), 4 * (0.5 + 7 * 1.0)),
            (CALLS.all_to_all(empty, 1.0), 0.0),
            # NCCL counts 8 steps of 8 processes on two nodes; a small broadcast has a quarter of the rate
            (FAST.broadcast(400e9, range(8)), 10 + SIMPLE.base + 8 * SIMPLE.between),
            (FAST.broadcast(40.0, range(8)), LL.base + 8 * LL.between + 40 / 10e9),
            (FAST.broadcast(40.0, range(4)), LL.base + 4 * LL.within + 40 / 19e9),
            (FAST.stages(equal(8, 1, rows=512), 1.0), 8 * FAST.broadcast(512.0, range(8))),
            # a block row of three replicas lies on two nodes for some
            (FAST.sum_rows(equal(4, 1, replication=3), 1e6), FAST.all_reduce(100e6, [3, 4, 5])),
            (FAST.sum_rows(equal(8, 1), 1e6), 0.0),
            # a ring that reduces has 2 (n - 1) steps, of which 2 a node are between nodes
            (FAST.all_reduce(12e6, range(12)), 2 * 11 / 12 * 12e6 / 40e9 + ring),
            # a column with one device a node has a quarter of its adapters
            (FAST.rate(Placement(4, 4).column(0)), 10e9),
            (FAST.rate(Placement(16, 1).column(0)), 40e9),
            (FAST.rate(range(4)), 100e9),
        )
    ):
        assert seconds == pytest.approx(expected, rel=1e-9), f"row {row}"


def test_the_busiest_process_decides_whether_it_sends_or_receives() -> None:
    volumes = equal(8, 1)
    needed = volumes.needed.copy()
    needed[4:, 0] = 30  # process 0 sends 120 to the other node
    for each in (needed, needed.T):
        assert FOURS.all_to_all(replace(volumes, needed=each), 1.0) == pytest.approx(120 / 10)


def test_a_tree_reduces_what_is_small() -> None:
    tree, ranks = TREES[0], range(256)
    small = tree.base + 2 * 3 * 1.8 * tree.within + 2 * 6 * tree.between
    assert FAST.all_reduce(1e3, ranks) == pytest.approx(small, rel=0.01)
    assert FAST.all_reduce(1e10, ranks) == pytest.approx(2 * 255 / 256 * 1e10 / 40e9, rel=0.05)


@pytest.mark.parametrize("form", FORMS)
def test_one_process_waits_for_nobody(form: str) -> None:
    alone, wires = equal(1, 0), Wires(nodes_of_four(between=Link(1.0, 10.0)), efficiency(collective=1.0))
    assert wires.exchange(alone, 8.0, form) == wires.sum_rows(alone, 8.0) == wires.all_reduce(8.0, [0]) == 0.0


def test_unknown_forms_are_named() -> None:
    with refused(UnknownName, "form of an exchange", "fusd", rule="fused"):
        FOURS.exchange(equal(2, 1), 1.0, "fusd")
