"""Expected volumes of random orders, and volumes scaled to another graph size."""

from __future__ import annotations

import numpy as np
import pytest

from suite.core.errors import InvalidRequest
from suite.data.graphs.generate import RMAT, Planted
from suite.gnn.partition.simple import Random
from suite.gnn.plan import Placement, Volumes, count_volumes
from suite.papers.sparse_gnn.expected_volume import random_order_volumes, scale_volumes


@pytest.mark.parametrize("k", [2, 7, 16])
@pytest.mark.parametrize("source", [RMAT(vertices=4096, degree=12), Planted(vertices=4096)], ids=["skewed", "even"])
def test_expected_volume_matches_counted_random_orders(source: RMAT | Planted, k: int) -> None:
    matrix = source.load(3).adjacency
    n = matrix.shape[0]
    expected = random_order_volumes(np.diff(matrix.indptr), Placement(k), vertices=n, entries=matrix.nnz)
    totals = [count_volumes(matrix, Random().parts(matrix, k, seed), k).total for seed in range(3)]
    assert np.mean(totals) == pytest.approx(expected.total, rel=0.01)
    assert expected.rows.sum() == n
    assert expected.nonzeros.sum() == pytest.approx(matrix.nnz, rel=0.01)
    assert expected.imbalance == 0


def test_degrees_are_scaled_to_published_density() -> None:
    """With four neighbours per vertex, another quarter of the vertices holds no neighbour with probability (3/4)^4."""
    expected = random_order_volumes([1.0, 1.0], Placement(4), vertices=4000, entries=16000)
    assert expected.needed[0, 1] == round(1000 * (1 - 0.75**4))
    assert expected.nonzeros[2, 3] == 1000


def test_expected_volume_of_degenerate_graphs() -> None:
    assert random_order_volumes([3.0], Placement(1), vertices=10, entries=30).total == 0
    assert random_order_volumes([0.0, 0.0], Placement(3), vertices=9, entries=0).total == 0
    assert list(random_order_volumes([1.0], Placement(4), vertices=10, entries=10).rows) == [2, 3, 2, 3]
    with pytest.raises(InvalidRequest):
        random_order_volumes([], Placement(2), vertices=3, entries=3)


def test_scaling_follows_vertices_and_entries() -> None:
    needed = np.full((4, 4), 5)
    np.fill_diagonal(needed, 0)
    counted = Volumes(needed, np.full(4, 50), np.full((4, 4), 40), Placement(4))
    scaled = scale_volumes(counted, vertices=2000, entries=6400)
    assert (scaled.rows.sum(), scaled.nonzeros.sum(), scaled.needed[0, 1]) == (2000, 6400, 50)
    assert scaled.imbalance == counted.imbalance
    empty = Volumes(np.zeros((2, 2), int), np.full(2, 5), np.zeros((2, 2), int), Placement(2))
    assert scale_volumes(empty, vertices=100, entries=7).nonzeros.sum() == 0
