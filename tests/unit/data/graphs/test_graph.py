"""Graph: edges, the GCN operator, and refusal of bad edge lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from suite.core.errors import InvalidRequest
from suite.data.graphs import Graph, operator
from tests.support.refusals import fault, refused


def directed(n: int = 30, seed: int = 0) -> Graph:
    """A weighted, directed graph with self loops, a source, a sink and an isolated vertex."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) * (rng.random((n, n)) < 0.2)
    dense[:, 0] = dense[1, :] = 0
    dense[2, :] = dense[:, 2] = 0
    u, v = np.nonzero(dense)
    return Graph.of("directed", u, v, n, dense[u, v])


def test_an_edge_stands_in_the_row_of_its_source() -> None:
    graph = Graph.of("g", [0, 2, 1], [1, 0, 2], 4, [1.0, 2.0, 3.0])
    assert graph.adjacency.toarray().tolist() == [[0, 1, 0, 0], [0, 0, 3, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert (graph.vertices, graph.edges, graph.symmetric, graph.notes) == (4, 3, False, ())
    assert Graph.of("g", [0], [1], 2).adjacency.dtype == np.float32
    assert not Graph.of("g", [0, 1], [1, 0], 2, [1.0, 2.0]).symmetric, "another weight back"


def test_changes_at_loading_are_noted() -> None:
    graph = Graph.of("g", [0, 0, 1, 1, 2], [1, 1, 0, 1, 2], 4, symmetrise=True, loops=True, notes=("read",))
    assert graph.adjacency.toarray().tolist() == [[1, 3, 0, 0], [3, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert graph.notes == ("read", "3 reverse edges added", "2 self loops added", "4 duplicate edges added up")
    assert graph.symmetric
    gone = Graph.of("g", [0, 0, 1], [1, 1, 0], 2, [1.0, -1.0, 1.0])
    assert (gone.edges, gone.notes) == (1, ("1 duplicate edges added up", "1 edges of weight 0 left out"))


def test_the_hash_is_that_of_the_graph_alone() -> None:
    graph = Graph.of("one", [0, 1, 2], [1, 2, 0], 3)
    labels = {"labels": np.zeros(3, np.int64), "classes": 1}
    assert Graph.of("two", np.array([2, 0, 1], np.uint8), [0, 1, 2], 3, np.ones(3), **labels).hash == graph.hash
    for different in (([0, 1, 2], [1, 2, 0], 4), ([0, 1, 1], [1, 2, 0], 3), ([0, 1, 2], [1, 2, 0], 3, [1, 1, 2])):
        assert Graph.of("one", *different).hash != graph.hash


def test_the_operator_is_the_gcn_s() -> None:
    graph = directed()
    dense = graph.adjacency.toarray().astype(np.float64)
    dense[np.diag_indices(30)] = np.where(np.diag(dense) == 0, 1.0, np.diag(dense))
    expected = dense.sum(1)[:, None] ** -0.5 * dense * dense.sum(0)[None, :] ** -0.5
    matrix = operator(graph)
    assert matrix.dtype == np.float64
    assert np.abs(matrix.toarray() - expected).max() < 1e-15
    assert matrix.has_canonical_format
    assert matrix.nnz == (dense != 0).sum()
    assert matrix[2, 2] == 1.0, "an isolated vertex keeps its loop, and nothing else"


def test_a_symmetric_graph_has_a_symmetric_operator_bit_for_bit() -> None:
    rng = np.random.default_rng(1)
    u, v = rng.integers(0, 40, (2, 4000))  # an edge comes five times in the mean: the order of adding shows
    graph = Graph.of("g", u, v, 40, rng.random(4000), symmetrise=True)
    assert graph.symmetric
    assert graph.adjacency.dtype == np.float64
    matrix = operator(graph)
    assert np.array_equal(matrix.toarray(), matrix.toarray().T)


@pytest.mark.parametrize("n", [1, 5])
def test_a_graph_without_edges_has_the_identity(n: int) -> None:
    graph = Graph.of("bare", [], [], n)
    assert (graph.edges, graph.symmetric) == (0, True)
    assert np.array_equal(operator(graph).toarray(), np.eye(n))


BAD_EDGES: tuple[tuple[tuple[Any, ...], str], ...] = (
    (([0, 3], [1, 0], 3), "index 3 exceeds matrix dimension 3"),
    (([0, 1], [-1, -2], 3), "index: -2"),
    (([0.5], [1], 3), "float64"),
    (([0, 1], [1, 0], 2, [1.0, np.nan]), "weight nan, and 0 more of 2"),
    (([0], [1], 2, ["a"]), "<U1"),
)


def test_bad_edges_are_refused_with_the_numbers() -> None:
    for arguments, subject in BAD_EDGES:
        with refused(InvalidRequest, subject=subject):
            Graph.of("g", *arguments)


BAD_GRAPHS: tuple[tuple[dict[str, Any], dict[str, object]], ...] = (
    ({"features": np.zeros((2, 4), np.float32)}, fault(subject="float32 (2, 4)", rule="(3, f)")),
    ({"features": np.array([[0], [np.nan], [0]], np.float32)}, fault(subject="feature nan, and 0 more of 3")),
    ({"labels": np.array([0, 1, 2]), "classes": 2}, fault(subject="from 0 to 2 of 2")),
    ({"labels": np.array([0, -2, 1]), "classes": 2}, fault(subject="from -2 to 1")),
    ({"labels": np.array([-1, -1, -1])}, fault(subject="of 0 classes")),
    ({"classes": 2}, fault(subject="2 classes without labels")),
    ({"adjacency": sparse.csr_array((2, 3), dtype=np.float32)}, fault(subject="(2, 3)")),
)


def test_a_graph_that_does_not_hold_together_is_refused() -> None:
    graph = Graph.of("g", [0, 1], [1, 2], 3)
    assert graph.train.tolist() == [False] * 3
    for changed, expected in BAD_GRAPHS:
        with refused(InvalidRequest, **expected):
            replace(graph, **changed)


def test_a_degree_without_a_root_is_refused() -> None:
    for edges, weights, subject in (
        (([0], [1]), [-3.0], "out-degree -2 of vertex 0"),
        (([0, 1], [1, 0]), [-1.0, -1.0], "out-degree 0 of vertex 0"),
        (([0, 0], [0, 1]), [1e308, 1e308], "out-degree inf of vertex 0"),
        (([0, 0, 1, 1], [0, 1, 0, 1]), [1e-320] * 4, "operator inf of edge 0 -> 0"),
    ):
        with refused(InvalidRequest, subject=subject):
            operator(Graph.of("g", *edges, 2, weights))
