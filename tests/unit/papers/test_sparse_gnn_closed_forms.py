"""Printed costs of a sparse product, by hand and compared with the message model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suite.gnn.plan import Placement, Volumes
from suite.papers.sparse_gnn.closed_forms import bound_1_5d, bound_1d, bound_sum
from suite.simulate.network.exchange import Wires
from suite.simulate.network.machine import Link
from tests.support.modelled import efficiency, machine


def equal_parts(parts: int, cut: int, *, rows: int = 100, replication: int = 1) -> Volumes:
    """Volumes of parts that each need `cut` rows of every other."""
    needed = np.full((parts, parts), cut)
    np.fill_diagonal(needed, 0)
    return Volumes(needed, np.full(parts, rows), np.full((parts, parts), 10), Placement(parts, replication))


@pytest.mark.parametrize(("parts", "cut"), [(2, 3), (5, 7), (64, 12)])
def test_printed_1d_cost_is_exact_for_equal_parts(parts: int, cut: int) -> None:
    """Section 4.1, on nodes of one device."""
    volumes, alpha = equal_parts(parts, cut), 0.25
    wires = Wires(machine(devices_per_node=1, between=Link(alpha, 10.0)), efficiency(adapters=4))
    printed = bound_1d(volumes, 3, alpha=alpha, beta=4 / 10.0)
    assert wires.all_to_all(volumes, 4 * 3.0) == pytest.approx(printed, rel=1e-12)
    assert printed == pytest.approx(alpha * (parts - 1) + (parts - 1) * cut * 3 * 0.4, rel=1e-12)


def test_printed_15d_cost_by_hand() -> None:
    """Section 4.2 at P = 16, c = 2: four stages; the omitted all-reduce moves half the block row twice."""
    volumes = equal_parts(8, 7, replication=2, rows=30)
    assert bound_1_5d(volumes, 5, alpha=2.0, beta=0.5) == pytest.approx(2.0 * 4 * math.log(4) + 4 * 7 * 5 * 0.5)
    assert bound_sum(volumes, 5, beta=0.5) == pytest.approx(30 * 5 * 0.5)
