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


def volumes(parts: int = 4, replication: int = 1) -> Volumes:
    """50 vertices and 40 entries a block; each part needs 5 rows of each other one."""
    needed = np.full((parts, parts), 5)
    np.fill_diagonal(needed, 0)
    return Volumes(needed, np.full(parts, 50), np.full((parts, parts), 40), Placement(parts, replication))


def graph(form: str = "fused", parts: int = 4, replication: int = 1, **options: Any) -> FullGraph:
    return FullGraph(volumes(parts, replication), SHAPE, FEATURES, CLASSES, form, **options)


WHERE = machine(peak={"float32": 1e6}, memory_bandwidth=1e4)
REACHED = efficiency(traffic=0.5, launch=0.01)


def test_an_epoch_moves_what_its_products_multiply() -> None:
    """2 L products: H of 300, 16 and 16 columns forward, G of 24, 16 and 16 backward."""
    assert list(graph().widths) == [300, 16, 16, 24, 16, 16]
    assert list(graph(order="auto").widths) == [16, 16, 16, 16, 16, 16]
    assert len(graph(epoch="lean").widths) == 4
    assert list(graph().sent()) == [4 * 388 * 15] * 4
    assert list(graph("oblivious").sent()) == [4 * 388 * 150] * 4


def test_phases_are_the_sum_over_products() -> None:
    one = graph(replication=2)
    wires = Wires(WHERE, REACHED)
    phases = one.seconds(WHERE, REACHED)
    assert phases.exchange == pytest.approx(sum(wires.all_to_all(one.volumes, 4 * w) for w in one.widths))
    assert phases.sums == pytest.approx(sum(wires.sum_rows(one.volumes, 4 * w) for w in one.widths))
    assert phases.products == pytest.approx(sum(one.product(WHERE, REACHED, w) for w in one.widths))
    weights = [300 * 16, 16 * 16, 16 * 24]
    assert phases.weights == pytest.approx(
        sum(wires.all_reduce(4 * w, one.volumes.placement.column(0)) for w in weights)
    )
    assert phases.seconds == pytest.approx(sum(phases.phases().values()))
    assert phases.communication == phases.exchange + phases.sums + phases.weights
    assert graph().seconds(WHERE, REACHED).sums == 0.0


def test_one_sparse_product_of_the_engine_by_hand() -> None:
    """160 entries with 8 bytes each and a row of 10 values, 15 rows gathered and written, 50 rows of the result."""
    moved = 160 * (8 + 40) + 2 * 15 * 40 + 50 * 40
    assert graph().product(WHERE, REACHED, 10) == pytest.approx(moved / 5000 + 2 * 0.01)


def test_one_sparse_product_of_the_published_code_by_hand() -> None:
    """Four blocks: as many sums, read and written; three block rows of zeros, 15 rows copied there; 20 bytes each."""
    moved = 160 * (20 + 40) + 4 * 2 * 40 * 50 + 2 * 40 * 15 + 150 * 40 + 2 * 15 * 40
    assert graph(published=True).product(WHERE, REACHED, 10) == pytest.approx(moved / 5000 + 13 * 0.01)
    oblivious = 160 * (20 + 40) + 4 * 2 * 40 * 50
    assert graph("oblivious", published=True).product(WHERE, REACHED, 10) == pytest.approx(oblivious / 5000 + 4 * 0.01)


def test_the_fullest_process_decides() -> None:
    even = volumes()
    entries = even.nonzeros.copy()
    entries[2, 2] += 100
    skewed = FullGraph(replace(even, nonzeros=entries), SHAPE, FEATURES, CLASSES, "fused")
    assert skewed.product(WHERE, REACHED, 10) == pytest.approx(graph().product(WHERE, REACHED, 10) + 100 * 48 / 5000)


def test_replicas_do_not_share_a_blocks_entries() -> None:
    """One replica multiplies the diagonal blocks: the others wait."""
    diagonal = Volumes(np.zeros((4, 4), int), np.full(4, 50), np.diag(np.full(4, 160)), Placement(4))
    times = [
        FullGraph(diagonal.on_grid(Placement(4, c)), SHAPE, FEATURES, CLASSES, "fused").product(WHERE, REACHED, 10)
        for c in (1, 2, 4)
    ]
    assert times[0] == times[1] == times[2]


def test_dense_products_are_bound_by_flops_or_by_bytes() -> None:
    assert graph().dense(WHERE, REACHED, 300, 16) == pytest.approx(4 * 50 * 316 / 5000 + 0.01)  # 0.48 of flops
    slow = replace(WHERE, peak={"float32": 1e4})
    assert graph().dense(slow, REACHED, 300, 16) == pytest.approx(2 * 50 * 300 * 16 / 1e4 + 0.01)


def test_an_efficiency_that_hides_memory_is_refused() -> None:
    with refused(InvalidRequest, subject="traffic", rule="they are bound by memory"):
        graph().seconds(WHERE, efficiency(traffic=0.0))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_grows_with_own_rows_and_halo() -> None:
    """A ring of parts, each of 50 vertices: what a process holds is the same with four parts and with 64."""

    def ring(parts: int) -> FullGraph:
        needed = np.zeros((parts, parts), int)
        for i in range(parts):
            needed[i, (i + 1) % parts] = needed[i, i - 1] = 5
        blocks = 8 * needed + np.diag(np.full(parts, 200))
        return FullGraph(Volumes(needed, np.full(parts, 50), blocks, Placement(parts)), SHAPE, 300, 24, "fused")

    assert ring(4).peak() == ring(64).peak()
    whole = [replace(ring(p), form="oblivious", published=True).memory()["rows"][0] for p in (4, 64)]
    assert whole[0] == whole[1] == 4 * 300 * 50


def test_memory_of_the_published_code() -> None:
    ours, theirs = graph().memory(), graph(published=True).memory()
    assert ours["graph"][0] == 160 * 8 + 51 * 4
    assert theirs["graph"][0] == 160 * 40  # whole, and in blocks
    assert ours["rows"][0] == 4 * 300 * (15 + 15)
    assert theirs["rows"][0] == 4 * 300 * (15 + 15 + 50)
    assert theirs["gradient of features"][0] == 4 * 300 * 50
    assert ours["activations"][0] == 4 * 50 * (2 * (16 + 16 + 24) + 300)


def test_what_does_not_fit_says_by_how_much() -> None:
    one = graph()
    one.check_memory(replace(WHERE, memory=float(one.peak())))
    with refused(DoesNotFit, subject="of 4 processes", rule="at most 0.0 GB of a device of small") as raised:
        one.check_memory(replace(WHERE, memory=float(one.peak() - 1)))
    assert sum(each[0] for each in raised.value.memory.values()) == one.peak()


def test_a_directed_graph_sends_other_rows_backward() -> None:
    """Forward products of 300, 16 and 16 columns by one plan, backward ones of 24, 16 and 16 by another."""
    ahead = graph()
    back = replace(ahead.volumes, needed=2 * ahead.volumes.needed)
    both = replace(ahead, back=back)
    assert list(both.sent()) == [4 * (332 * 15 + 56 * 30)] * 4
    times = [replace(ahead, volumes=v).seconds(WHERE, REACHED).exchange for v in (ahead.volumes, back)]
    exchange = both.seconds(WHERE, REACHED).exchange
    assert times[0] < exchange < times[1]
    assert both.memory()["graph"][0] == 2 * ahead.memory()["graph"][0]
    assert both.memory()["rows"][0] == 2 * ahead.memory()["rows"][0]
