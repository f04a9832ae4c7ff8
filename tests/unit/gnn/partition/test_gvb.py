"""GVB-style refinement: volumes are exact, and the result is never worse than its starts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from suite.data.graphs.communities import AmazonLike
from suite.data.graphs.generate import Planted
from suite.gnn.partition import gvb
from suite.gnn.partition.gvb import Gvb
from suite.gnn.partition.metis import Metis, directed_pattern, entries_per_row
from suite.gnn.partition.refine import Level, MoveRule
from suite.gnn.plan import IntArray, count_volumes
from tests.support.drawn import drawn

K = 8
UNLIMITED = 10**9  # ceiling or cap


def undirected_graph(n: int, *pairs: tuple[int, int]) -> csr_array:
    u, v = np.array(pairs, np.int64).reshape(-1, 2).T
    return csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])), shape=(n, n))


def random_matrix(n: int, seed: int, degree: float = 6.0, *, symmetric: bool = False) -> csr_array:
    matrix = csr_array(random_array((n, n), density=min(1, degree / n), rng=np.random.default_rng(seed), format="csr"))
    return csr_array(matrix + matrix.T) if symmetric else matrix


def grid(side: int) -> csr_array:
    at = np.arange(side * side).reshape(side, side)
    right, down = zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), zip(at[:-1].flat, at[1:].flat, strict=True)
    return undirected_graph(side * side, *right, *down)


def cliques(count: int, size: int) -> csr_array:
    """A ring of cliques."""
    inside = [(c * size + i, c * size + j) for c in range(count) for i in range(size) for j in range(i)]
    ring = [(c * size, (c + 1) % count * size + 1) for c in range(count)]
    return undirected_graph(count * size, *inside, *ring)


def heaviest(matrix: csr_array, parts: IntArray, k: int) -> int:
    return int(np.bincount(parts, weights=entries_per_row(matrix), minlength=k).max())


def costs(matrix: csr_array, parts: IntArray, k: int) -> tuple[int, int]:
    """Rows of the busiest sender, and of all."""
    volumes = count_volumes(matrix, parts, k)
    return int(volumes.send.max()), volumes.total


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 999), st.floats(0.5, 8), st.booleans())
def test_tracked_sends_equal_counted_volumes_after_refinement(
    n: int, k: int, seed: int, degree: float, symmetric: bool
) -> None:
    """Pin counts stay exact when vertices move back and forth and slots are reused."""
    matrix = random_matrix(n, seed, degree, symmetric=symmetric)
    parts = np.random.default_rng(seed).integers(0, k, n).astype(np.int32)
    before, level = count_volumes(matrix, parts, k), Level.finest(directed_pattern(matrix), entries_per_row(matrix))
    cap = heaviest(matrix, parts, k)
    for penalty in (0, 8):
        refined, send = level.refined(parts, k, MoveRule(cap, UNLIMITED, 64), penalty=penalty, seed=seed)
        after = count_volumes(matrix, refined, k)
        assert (after.send == send).all()
        assert (after.send.max(), after.total) <= (before.send.max(), before.total)
        assert heaviest(matrix, refined, k) <= cap


@settings(deadline=None, max_examples=12)
@given(st.integers(4, 60), st.integers(2, 5), st.integers(0, 999), st.booleans())
def test_contracted_level_counts_volumes_of_its_clusters(n: int, k: int, seed: int, symmetric: bool) -> None:
    matrix, rng = random_matrix(n, seed, symmetric=symmetric), np.random.default_rng(seed)
    fine = Level.finest(directed_pattern(matrix), entries_per_row(matrix))
    first = np.unique(rng.integers(0, max(2, n // 3), n), return_inverse=True)[1].astype(np.int32)
    coarse = fine.contracted(first)
    second = np.unique(rng.integers(0, 5, len(coarse.weight)), return_inverse=True)[1].astype(np.int32)
    for level, cluster in ((coarse, first), (coarse.contracted(second), second[first])):
        assert level.weight.sum() == matrix.nnz
        assert all(a <= b for a, b in pairwise(level.owner))
        parts = rng.integers(0, k, len(level.weight)).astype(np.int32)
        refined, send = level.refined(parts, k, MoveRule(matrix.nnz, UNLIMITED, 64), penalty=8, seed=seed)
        assert (count_volumes(matrix, refined[cluster], k).send == send).all()


def test_part_above_cap_loses_vertices_even_at_a_loss() -> None:
    """Six cliques in one part, two in the other; a vertex that leaves its clique costs rows."""
    matrix, parts = cliques(8, 8), (np.arange(64) >= 48).astype(np.int32)
    level, cap = Level.finest(directed_pattern(matrix), entries_per_row(matrix)), int(1.1 * matrix.nnz / 2)
    refined, send = level.refined(parts, 2, MoveRule(cap, UNLIMITED, 64), penalty=8, seed=0)
    assert heaviest(matrix, parts, 2) > cap >= heaviest(matrix, refined, 2)
    assert send.sum() > costs(matrix, parts, 2)[1]


CASES = {
    "grid": (grid(20), 7),
    "cliques": (cliques(40, 6), 8),
    "star": (undirected_graph(301, *((0, leaf) for leaf in range(1, 301))), 2),  # the centre has half of the entries
    "directed": (random_matrix(600, 1), 8),
    "dense": (random_matrix(64, 2, 40.0, symmetric=True), 8),
    "one part": (grid(8), 1),
    "as many parts as vertices": (grid(3), 9),
    "self loops only": (csr_array(np.eye(30)), 4),
    "one edge": (undirected_graph(50, (3, 7)), 4),
}


@pytest.mark.parametrize("case", drawn(CASES, n=4))
def test_gvb_is_never_worse_than_best_metis_start(case: str) -> None:
    matrix, k = CASES[case]
    seed, cap = 3, int(1.1 * matrix.nnz / k)
    parts = Gvb().parts(matrix, k, seed)
    assert 0 <= parts.min() <= parts.max() < k
    metis = [Metis().parts(matrix, k, seed + number) for number in range(3)]
    within_cap = [start for start in metis if heaviest(matrix, start, k) <= cap]
    assert costs(matrix, parts, k) <= min(costs(matrix, start, k) for start in within_cap or metis)
    assert heaviest(matrix, parts, k) <= (cap if within_cap else max(heaviest(matrix, start, k) for start in metis))


def test_start_above_cap_is_ignored_if_another_respects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a start has all vertices but one in one part, and moves few rows."""
    matrix, corner = grid(16), (np.arange(256) == 0).astype(np.int32)
    even = Metis().parts(matrix, 2, 0)
    monkeypatch.setattr(gvb, "kway", lambda pattern, k, seed, ufactor: (even, corner, corner)[seed])
    parts = Gvb().parts(matrix, 2, 0)
    assert heaviest(matrix, parts, 2) <= 1.1 * matrix.nnz / 2
    assert costs(matrix, parts, 2)[0] <= costs(matrix, even, 2)[0]


def test_parts_depend_on_seed_and_pattern_only() -> None:
    matrix = AmazonLike(vertices=1024, features=0, classes=0).load(2).adjacency
    first = Gvb().parts(matrix, K, 5)
    assert (first == Gvb().parts(matrix, K, 5)).all()
    assert (first != Gvb().parts(matrix, K, 6)).any()
    other = csr_array(matrix)
    other.data = other.data * 3
    assert (first == Gvb().parts(other, K, 5)).all()


def test_refinement_gains_on_communities_not_on_planted_blocks() -> None:
    """Negative control: METIS finds equal planted blocks exactly."""
    source = AmazonLike(vertices=1 << 12, features=0, classes=0)
    planted = Planted(vertices=1 << 12, blocks=K, inside=14, outside=2, features=1)
    ratio = {}
    for name, matrix in (("amazon", source.load(0).adjacency), ("planted", planted.load(0).adjacency)):
        most, total = np.median([costs(matrix, Metis().parts(matrix, K, seed), K) for seed in range(5)], axis=0)
        parts = Gvb().parts(matrix, K, 0)
        max_send, sent = costs(matrix, parts, K)
        ratio[name] = max_send / most
        assert sent <= 1.005 * total
        assert heaviest(matrix, parts, K) <= 1.1 * matrix.nnz / K
    assert ratio["amazon"] <= 0.80
    assert 0.97 <= ratio["planted"] <= 1.01
