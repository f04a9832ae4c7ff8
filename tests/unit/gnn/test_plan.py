"""Exchange plans: volumes equal a count on the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest
from suite.gnn.plan import ExchangePlan, Placement, count_volumes
from tests.support.refusals import refused

ASSIGNMENTS = ("paper", "interleaved")


def random_matrix(n: int, seed: int, density: float = 0.1) -> csr_array:
    return csr_array(random_array((n, n), density=density, rng=np.random.default_rng(seed), format="csr"))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 24), st.integers(1, 7), st.integers(0, 999), st.floats(0, 0.5))
def test_volumes_count_distinct_nonzero_columns_of_blocks(n: int, k: int, seed: int, density: float) -> None:
    matrix, parts = random_matrix(n, seed, density), np.random.default_rng(seed).integers(0, k, n)
    volumes = count_volumes(matrix, parts, k)
    assert volumes.nonzeros.sum() == matrix.nnz
    assert volumes.send.sum() == volumes.receive.sum() == volumes.total
    assert (volumes.needed <= volumes.oblivious().needed).all()
    assert volumes.oblivious().total == n * (k - 1)
    plan = ExchangePlan.build(matrix, parts, Placement(k))
    assert (plan.volumes.needed == volumes.needed).all()
    dense = matrix.toarray() != 0
    for i in range(k):
        for q in range(k):
            columns = np.flatnonzero(dense[parts == i][:, parts == q].any(axis=0))
            assert (plan.needs(i, q) == columns).all()
            assert volumes.needed[i, q] == (len(columns) if i != q else 0)


def test_every_block_is_multiplied_once() -> None:
    grids = [(4, 1), (4, 2), (3, 3), (5, 2), (2, 3), (8, 4)]
    for parts, replication, assignment in [(*grid, assignment) for grid in grids for assignment in ASSIGNMENTS]:
        placement = Placement(parts, replication, assignment)
        for row in range(parts):
            stages = [q for rank in placement.row(row) for q in placement.stages(rank)]
            assert sorted(stages) == list(range(parts))
        columns = [rank for column in range(replication) for rank in placement.column(column)]
        assert sorted(columns) == list(range(placement.processes))
        assert all(placement.rank(*placement.coordinates(rank)) == rank for rank in range(placement.processes))
        vertex_parts = np.random.default_rng(2).integers(0, parts, 40)
        volumes = count_volumes(random_matrix(40, 1), vertex_parts, parts, placement)
        assert volumes.send.sum() == volumes.receive.sum() == volumes.total
        assert volumes.entries.sum() == volumes.nonzeros.sum()


def test_interleaved_assignment_sends_from_all_replicas() -> None:
    """Algorithm 2: if c^2 divides P, every process has s = P / c^2 stages, and grid column q // s sends block row q."""
    placement = Placement.of(16, 2)
    assert [placement.stages(rank) for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    matrix, parts = random_matrix(64, 3, 0.3), np.arange(64) % 8
    paper, interleaved = (count_volumes(matrix, parts, 8, Placement(8, 2, a)) for a in ASSIGNMENTS)
    assert (paper.send > 0).sum() == 8
    assert (interleaved.send > 0).sum() == 16
    assert interleaved.send.max() < paper.send.max()
    assert (paper.all_reduce_rows == 8).all()


def test_invalid_partition_or_grid_is_refused() -> None:
    for parts, subject in (
        (np.zeros(4, int), "shape (4,) for 5 vertices"),
        (np.array([0, -1, 2, 0, 0]), "vertex 1 is in part -1; 1 more"),
        (np.zeros(5), "float64"),
    ):
        with refused(InvalidRequest, subject=subject):
            ExchangePlan.build(random_matrix(5, 1), parts, Placement(2))
    with pytest.raises(InvalidRequest) as refusal:
        Placement.of(8, 3)
    assert refusal.value.legal == "exchange.replication=2"
