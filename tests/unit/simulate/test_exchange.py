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


def test_seconds_by_hand() -> None:
    columns, empty = equal(8, 5, replication=2), equal(8, 0, replication=2)
    far, plain = Wires(flat(0.25), WIRES), Wires(flat(), efficiency(adapters=1))
    pairs = Wires(nodes_of_four(), efficiency(adapters=4, pairs=0.5))
    slow = Wires(nodes_of_four(between=Link(0.5, 10.0), within=Link(0.1, 100.0)), WIRES, LINKS)
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
            # steps of a plain ring cost the latency of their links
            (slow.broadcast(200.0, range(4)), 4 * 0.1 + 2.0),
            (slow.all_reduce(200.0, range(4)), 6 * 0.1 + 3.0),
            (slow.broadcast(200.0, range(8)), 8 * 0.5 + 200 / 40),
        )
    ):
        assert seconds == pytest.approx(expected, rel=1e-9), f"row {row}"


def test_the_busiest_process_decides_whether_it_sends_or_receives() -> None:
    volumes = equal(8, 1)
    needed = volumes.needed.copy()
    needed[4:, 0] = 30  # process 0 sends 120 to the other node
    for each in (needed, needed.T):
        assert FOURS.all_to_all(replace(volumes, needed=each), 1.0) == pytest.approx(120 / 10)


def test_interleaved_columns_share_the_sends() -> None:
    """Each part's rows leave through all of its replicas: a column has 8 stages with half the messages."""
    wires, spread = Wires(flat(), WIRES), equal(8, 5, replication=2, assignment="interleaved")
    assert wires.all_to_all(spread, 1.0) < wires.all_to_all(equal(8, 5, replication=2), 1.0)


def test_small_and_large_collectives_follow_latency_and_bytes() -> None:
    latency, size = ({p: FAST.stages(equal(p, 1, rows=4096 // p), width) for p in (8, 32, 64)} for width in (1.0, 1e9))
    assert latency[64] / latency[32] == pytest.approx(4, rel=0.2)  # twice the stages, twice the steps
    assert size[64] == pytest.approx(size[8], rel=0.01)  # all of H passes every adapter
    rates = [FAST.rate(Placement(16 // c, c).column(0)) for c in (1, 2, 4)]
    assert rates == pytest.approx([40e9, 20e9, 10e9])  # a column with one device a node has a quarter of its adapters
    assert FAST.rate(range(4)) == 100e9
    small, large = (FAST.all_reduce(each, range(256)) for each in (1e3, 1e10))
    tree = TREES[0]
    assert small == pytest.approx(tree.base + 2 * 3 * 1.8 * tree.within + 2 * 6 * tree.between, rel=0.01)
    assert large == pytest.approx(2 * 255 / 256 * 1e10 / 40e9, rel=0.05)


@pytest.mark.parametrize("form", FORMS)
def test_one_process_waits_for_nobody(form: str) -> None:
    alone, wires = equal(1, 0), Wires(nodes_of_four(between=Link(1.0, 10.0)), efficiency(collective=1.0))
    assert wires.exchange(alone, 8.0, form) == wires.sum_rows(alone, 8.0) == wires.all_reduce(8.0, [0]) == 0.0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.builds(Placement, st.just(1), st.sampled_from([1, 2, 3, 4]), st.sampled_from(["paper", "interleaved"])),
    st.integers(0, 2**32 - 1),
    st.sampled_from(list(FORMS)),
)
def test_more_rows_never_take_less(parts: int, placement: Placement, seed: int, form: str) -> None:
    rng, rows, placement = np.random.default_rng(seed), np.full(parts, 50), replace(placement, parts=parts)
    fewer = rng.integers(0, 20, (parts, parts))
    more = fewer + rng.integers(0, 5, (parts, parts))
    for needed in (fewer, more):
        np.fill_diagonal(needed, 0)
    few, many = (Volumes(needed, rows, needed, placement) for needed in (fewer, more))
    slow, quick = (
        Wires(nodes_of_four(between=Link(0.1, rate), within=Link(0.01, 100.0)), WIRES) for rate in (10.0, 20.0)
    )
    seconds = slow.exchange(many, 3.0, form)
    assert 0 <= slow.exchange(few, 3.0, form) <= seconds <= slow.exchange(many, 6.0, form)
    assert quick.exchange(many, 3.0, form) <= seconds * (1 + 1e-12)


def test_unknown_forms_and_libraries_are_named() -> None:
    with refused(UnknownName, "form of an exchange", "fusd", rule="fused"):
        FOURS.exchange(equal(2, 1), 1.0, "fusd")
    with refused(UnknownName, "library of collectives", "link", rule="links"):
        Wires(nodes_of_four(), WIRES, "link")
