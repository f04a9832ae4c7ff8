"""Expected volumes of random orders, and of a stand-in scaled to another size."""

from __future__ import annotations

import numpy as np
import pytest

from suite.core.errors import InvalidRequest
from suite.data.graphs.generate import RMAT, Planted
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement, Volumes, count_volumes
from suite.papers.sparse_gnn.expected_volume import by_chance, scaled


@pytest.mark.parametrize("k", [2, 7, 16])
@pytest.mark.parametrize("source", [RMAT(vertices=4096, degree=12), Planted(vertices=4096)], ids=["skewed", "even"])
def test_counted_volumes_of_random_orders_are_those_to_be_expected(source: RMAT | Planted, k: int) -> None:
    matrix = source.load(3).adjacency
    n = matrix.shape[0]
    said = by_chance(np.diff(matrix.indptr), Placement(k), vertices=n, entries=matrix.nnz)
    counted = [count_volumes(matrix, Random().parts(matrix, k, seed), k) for seed in range(3)]
    assert np.mean([found.total for found in counted]) == pytest.approx(said.total, rel=0.01)
    assert said.rows.sum() == n
    assert said.nonzeros.sum() == pytest.approx(matrix.nnz, rel=0.01)
    assert said.imbalance == 0


def test_a_graph_of_the_same_kind_stands_for_a_denser_one() -> None:
    """Four neighbours each, of which another quarter of the vertices holds none with a chance of (3/4)^4."""
    said = by_chance([1.0, 1.0], Placement(4), vertices=4000, entries=16000)
    assert said.needed[0, 1] == round(1000 * (1 - 0.75**4))
    assert said.nonzeros[2, 3] == 1000


def test_edges_of_the_kind() -> None:
    assert by_chance([3.0], Placement(1), vertices=10, entries=30).total == 0
    assert by_chance([0.0, 0.0], Placement(3), vertices=9, entries=0).total == 0
    assert list(by_chance([1.0], Placement(4), vertices=10, entries=10).rows) == [2, 3, 2, 3]
    with pytest.raises(InvalidRequest, match="0 vertices"):
        by_chance([], Placement(2), vertices=3, entries=3)


def test_volumes_are_scaled_by_vertices_and_by_entries() -> None:
    needed = np.full((4, 4), 5)
    np.fill_diagonal(needed, 0)
    counted = Volumes(needed, np.full(4, 50), np.full((4, 4), 40), Placement(4))
    found = scaled(counted, vertices=2000, entries=6400)
    assert (found.rows.sum(), found.nonzeros.sum(), found.needed[0, 1]) == (2000, 6400, 50)
    assert found.imbalance == counted.imbalance
    empty = Volumes(np.zeros((2, 2), int), np.full(2, 5), np.zeros((2, 2), int), Placement(2))
    assert scaled(empty, vertices=100, entries=7).nonzeros.sum() == 0
