"""Seconds of a row exchange, by bytes, links and form.

Machines have round numbers, so that every time is counted by hand; NCCL's latencies are asked for by name.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.core.errors import UnknownName
from suite.gnn.plan import Placement, Volumes
from suite.simulate.network.exchange import CHAINS, FORMS, LINKS, RINGS, TREES, Wires, messages
from suite.simulate.network.machine import Link, Machine
from tests.support.modelled import efficiency, machine
from tests.support.refusals import refused


def equal(parts: int, cut: int, *, rows: int = 100, replication: int = 1, assignment: str = "paper") -> Volumes:
    """Every part needs `cut` rows of each other one."""
    needed = np.full((parts, parts), cut)
    np.fill_diagonal(needed, 0)
    blocks = np.full((parts, parts), 10)
    return Volumes(needed, np.full(parts, rows), blocks, Placement(parts, replication, assignment))


def flat(**changes: object) -> Machine:
    """One device a node, 10 bytes/s between any two, no latency."""
    return machine(**{"devices_per_node": 1, **changes})


def nodes_of_four(**changes: object) -> Machine:
    """Four devices and four adapters of 10 bytes/s a node, 100 bytes/s between two devices of a node."""
    return machine(**{"devices_per_node": 4, "adapters": 4, **changes})


WIRES = efficiency(adapters=4)


# -- who sends what to whom ------------------------------------------------------------------------------------------


def test_messages_are_between_the_processes_that_multiply_and_that_hold() -> None:
    volumes = equal(4, 5, replication=2)
    size = messages(volumes, 2.0)
    assert size.shape == (8, 8)
    for i in range(4):
        for q in range(4):
            column = 0 if q < 2 else 1  # Section 4.2: runs of k / c block columns
            for j in range(2):
                assert size[2 * i + j, 2 * q + j] == (10.0 if i != q and j == column else 0.0)
    assert size.sum() == 2.0 * volumes.total
    assert (size.sum(0) == 2.0 * volumes.send).all()
    assert (size.sum(1) == 2.0 * volumes.receive).all()


# -- all to all ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "cut"), [(2, 3), (5, 7), (64, 12)])
def test_equal_parts_send_one_message_after_another(parts: int, cut: int) -> None:
    wires = Wires(flat(between=Link(0.25, 10.0)), WIRES)
    seconds = (parts - 1) * (0.25 + cut * 12.0 / 10.0)
    assert wires.all_to_all(equal(parts, cut), 12.0) == pytest.approx(seconds, rel=1e-12)


def test_links_within_a_node_are_beside_its_adapters() -> None:
    """Eight processes on two nodes: 4 others behind the adapter, 3 in the node, each on a link of its own."""
    wires = Wires(nodes_of_four(), WIRES)
    assert wires.all_to_all(equal(8, 5), 1.0) == pytest.approx(4 * 5 / 10)
    assert wires.all_to_all(equal(4, 5), 1.0) == pytest.approx(5 / 100)


def test_the_busiest_process_decides_whether_it_sends_or_receives() -> None:
    volumes = equal(8, 1)
    needed = volumes.needed.copy()
    needed[4:, 0] = 30  # process 0 sends 120 to the other node
    sending = Wires(nodes_of_four(), WIRES).all_to_all(replace(volumes, needed=needed), 1.0)
    receiving = Wires(nodes_of_four(), WIRES).all_to_all(replace(volumes, needed=needed.T), 1.0)
    assert sending == receiving == pytest.approx(120 / 10)


def test_devices_share_too_few_adapters() -> None:
    """Two devices behind one adapter: the node's 2 x 2 x 5 rows leave through it."""
    assert Wires(machine(), efficiency(adapters=1)).all_to_all(equal(4, 5), 1.0) == pytest.approx(20 / 10)


def test_the_share_of_pairs_is_of_messages_alone() -> None:
    half = Wires(nodes_of_four(), efficiency(adapters=4, pairs=0.5))
    whole = Wires(nodes_of_four(), WIRES)
    assert half.all_to_all(equal(8, 5), 1.0) == pytest.approx(2 * whole.all_to_all(equal(8, 5), 1.0))
    assert half.stages(equal(8, 5), 1.0) == whole.stages(equal(8, 5), 1.0)


# -- stages ----------------------------------------------------------------------------------------------------------


def test_staged_exchange_takes_the_sum_of_its_senders() -> None:
    """1.5D, 8 parts on 2 columns: a column has 4 stages, in each one process sends 7 messages one after another."""
    volumes = equal(8, 5, replication=2)
    wires = Wires(flat(adapters=1), WIRES)
    assert wires.staged(volumes, 1.0) == pytest.approx(4 * 7 * 5 / 10)
    assert wires.all_to_all(volumes, 1.0) == pytest.approx(7 * 5 / 10)


def test_stages_cost_latencies_of_every_message_and_call() -> None:
    volumes = equal(8, 5, replication=2)
    wires = Wires(flat(between=Link(1.0, 10.0)), efficiency(adapters=1, collective=0.5))
    assert wires.staged(volumes, 1.0) == pytest.approx(4 * (0.5 + 7 * 1.0 + 3.5))


def test_a_stage_without_rows_still_has_its_messages() -> None:
    """Algorithm 2 sends and receives without asking how many rows there are; all to all skips what is empty."""
    wires = Wires(flat(between=Link(1.0, 10.0)), efficiency(adapters=1, collective=0.5))
    assert wires.staged(equal(8, 0, replication=2), 1.0) == pytest.approx(4 * (0.5 + 7 * 1.0))
    assert wires.all_to_all(equal(8, 0, replication=2), 1.0) == 0.0


def test_interleaved_columns_share_the_sends() -> None:
    """Each part's rows leave through all of its replicas: a column has 8 stages with half the messages."""
    wires = Wires(flat(), WIRES)
    spread = equal(8, 5, replication=2, assignment="interleaved")
    assert wires.all_to_all(spread, 1.0) < wires.all_to_all(equal(8, 5, replication=2), 1.0)


# -- broadcasts ------------------------------------------------------------------------------------------------------


def test_a_broadcast_pays_its_bytes_once_and_every_step() -> None:
    """By hand: 8 processes on two nodes are 8 steps, as NCCL counts a broadcast's; the ring has four adapters."""
    wires = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)
    ll, simple = CHAINS
    assert wires.broadcast(400e9, range(8)) == pytest.approx(10 + simple.base + 8 * simple.between)
    small = ll.base + 8 * ll.between + 40 / 10e9  # a quarter of the 40 GB/s
    assert wires.broadcast(40.0, range(8)) == pytest.approx(small)
    assert wires.broadcast(40.0, range(4)) == pytest.approx(ll.base + 4 * ll.within + 40 / 19e9)


def test_steps_of_sequential_stages_grow_quadratically() -> None:
    wires = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)
    vertices = 4096
    times = {p: wires.stages(equal(p, 1, rows=vertices // p), 1.0) for p in (8, 16, 32, 64)}
    assert times[8] == pytest.approx(8 * wires.broadcast(512.0, range(8)))
    assert times[64] / times[32] == pytest.approx(4, rel=0.2)  # latency alone: twice the stages, twice the steps
    long = {p: wires.stages(equal(p, 1, rows=vertices // p), 1e9) for p in (8, 64)}
    assert long[64] == pytest.approx(long[8], rel=0.01)  # bytes alone: all of H passes every adapter


def test_grid_column_uses_the_adapters_of_its_devices() -> None:
    """c = 4: a column has one device a node, and so a quarter of the node's adapters."""
    wires = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)
    rates = [wires.rate(Placement(16 // c, c).column(0)) for c in (1, 2, 4)]
    assert rates == pytest.approx([40e9, 20e9, 10e9])
    assert wires.rate(range(4)) == 100e9


def test_sums_over_replicas_stay_inside_a_node_where_they_can() -> None:
    wires = Wires(nodes_of_four(between=Link(0.0, 1e9), within=Link(0.0, 100e9)), WIRES)
    big = 1e6
    inside, outside = (wires.sum_rows(equal(4, 1, replication=c, rows=100), big) for c in (4, 8))
    assert inside == pytest.approx(2 * 3 / 4 * 100 * big / 100e9, rel=0.3)
    assert outside > 5 * inside
    assert wires.sum_rows(equal(8, 1), big) == 0.0
    # a block row of three replicas lies on two nodes for some
    assert wires.sum_rows(equal(4, 1, replication=3), big) == wires.all_reduce(100 * big, [3, 4, 5])


def test_a_ring_that_reduces_crosses_between_nodes_twice_a_node() -> None:
    """As NCCL counts: 2 (n - 1) steps, of which 2 a node are between nodes."""
    wires = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)
    simple = RINGS[1]
    steps = simple.base + 16 * simple.within + 6 * simple.between
    assert wires.all_reduce(12e6, range(12)) == pytest.approx(2 * 11 / 12 * 12e6 / 40e9 + steps, rel=1e-9)


def test_a_tree_reduces_what_is_small() -> None:
    wires = Wires(nodes_of_four(between=Link(0.0, 10e9), within=Link(0.0, 100e9)), WIRES)
    ranks = range(256)
    small, large = wires.all_reduce(1e3, ranks), wires.all_reduce(1e10, ranks)
    tree = TREES[0]
    assert small == pytest.approx(tree.base + 2 * 3 * 1.8 * tree.within + 2 * 6 * tree.between, rel=0.01)
    assert large == pytest.approx(2 * 255 / 256 * 1e10 / 40e9, rel=0.05)


# -- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_one_process_waits_for_nobody(form: str) -> None:
    alone = equal(1, 0)
    wires = Wires(
        nodes_of_four(between=Link(1.0, 10.0), within=Link(1.0, 10.0)), efficiency(adapters=4, collective=1.0)
    )
    assert wires.exchange(alone, 8.0, form) == 0.0
    assert wires.sum_rows(alone, 8.0) == wires.all_reduce(8.0, [0]) == 0.0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from(["paper", "interleaved"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(FORMS)),
)
def test_more_rows_never_take_less(parts: int, replication: int, assignment: str, seed: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    fewer = rng.integers(0, 20, (parts, parts))
    more = fewer + rng.integers(0, 5, (parts, parts))
    for needed in (fewer, more):
        np.fill_diagonal(needed, 0)
    rows = np.full(parts, 50)
    placement = Placement(parts, replication, assignment)
    where = nodes_of_four(between=Link(0.1, 10.0), within=Link(0.01, 100.0))
    wires = Wires(where, WIRES)
    few, many = (wires.exchange(Volumes(n, rows, n, placement), 3.0, form) for n in (fewer, more))
    assert 0 <= few <= many
    assert wires.exchange(Volumes(more, rows, more, placement), 6.0, form) >= many
    quicker = Wires(replace(where, between=Link(0.1, 20.0)), WIRES)
    assert quicker.exchange(Volumes(more, rows, more, placement), 3.0, form) <= many * (1 + 1e-12)


def test_an_unknown_form_is_named() -> None:
    with refused(UnknownName, "form of an exchange", "fusd", rule="fused"):
        Wires(machine(), efficiency()).exchange(equal(2, 1), 1.0, "fusd")


# -- another library -------------------------------------------------------------------------------------------------


def test_steps_of_a_plain_ring_cost_their_links_latency() -> None:
    wires = Wires(nodes_of_four(between=Link(0.5, 10.0), within=Link(0.1, 100.0)), WIRES, LINKS)
    assert wires.broadcast(200.0, range(4)) == pytest.approx(4 * 0.1 + 2.0)
    assert wires.all_reduce(200.0, range(4)) == pytest.approx(6 * 0.1 + 3.0)
    assert wires.broadcast(200.0, range(8)) == pytest.approx(8 * 0.5 + 200 / 40)
    with refused(UnknownName, "library of collectives", "link", rule="links"):
        Wires(nodes_of_four(), WIRES, "link")
