"""GVB refinement: exact counts, and never worse than its starts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing
from suite.data.graphs.communities import AmazonLike
from suite.data.graphs.generate import Planted
from suite.gnn.partition import Quality, gvb, partition, refine_numba
from suite.gnn.partition.gvb import Gvb
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.pattern import Rows, directed, entries
from suite.gnn.partition.refine import Level, MoveRule, cycle
from suite.gnn.plan import volumes

K = 8
FREE = 10**9  # no ceiling


def edges(n: int, *pairs: tuple[int, int]) -> csr_array:
    """An undirected graph."""
    u, v = np.array(pairs, np.int64).reshape(-1, 2).T
    return csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])), shape=(n, n))


def drawn(n: int, seed: int, degree: float = 6.0, *, symmetric: bool = False) -> csr_array:
    found = csr_array(random_array((n, n), density=min(1, degree / n), rng=np.random.default_rng(seed), format="csr"))
    return csr_array(found + found.T) if symmetric else found


def grid(side: int) -> csr_array:
    at = np.arange(side * side).reshape(side, side)
    right, down = zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), zip(at[:-1].flat, at[1:].flat, strict=True)
    return edges(side * side, *right, *down)


def cliques(count: int, size: int) -> csr_array:
    """A ring of them."""
    inside = [(c * size + i, c * size + j) for c in range(count) for i in range(size) for j in range(i)]
    ring = [(c * size, (c + 1) % count * size + 1) for c in range(count)]
    return edges(count * size, *inside, *ring)


def star(leaves: int) -> csr_array:
    return edges(leaves + 1, *((0, leaf) for leaf in range(1, leaves + 1)))


def bipartite(left: int, right: int) -> csr_array:
    rng = np.random.default_rng(0)
    return edges(left + right, *((int(u), left + int(v)) for u in range(left) for v in rng.integers(0, right, 4)))


def heaviest(matrix: csr_array, parts: Rows, k: int) -> int:
    return int(np.bincount(parts, weights=entries(matrix), minlength=k).max())


def quality(matrix: csr_array, parts: Rows, k: int) -> Quality:
    return Quality.of(volumes(matrix, parts, k))


# The refinement


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 999), st.floats(0.5, 8), st.booleans())
def test_sends_are_what_the_blocks_count_after_any_moves(
    n: int, k: int, seed: int, degree: float, symmetric: bool
) -> None:
    """Nothing is lost on the way: not by moves back and forth, not by slots that are filled again."""
    matrix = drawn(n, seed, degree, symmetric=symmetric)
    parts = np.random.default_rng(seed).integers(0, k, n).astype(np.int32)
    before, level = volumes(matrix, parts, k), Level.finest(directed(matrix), entries(matrix))
    cap = heaviest(matrix, parts, k)
    for penalty in (0, 8):
        found, send = level.refined(parts, k, MoveRule(cap, FREE, 64), penalty=penalty, seed=seed)
        after = volumes(matrix, found, k)
        assert (after.send == send).all()
        assert (after.send.max(), after.total) <= (before.send.max(), before.total)
        assert heaviest(matrix, found, k) <= cap


@settings(deadline=None, max_examples=25)
@given(st.integers(4, 60), st.integers(2, 5), st.integers(0, 999), st.booleans())
def test_a_contracted_level_moves_what_its_clusters_move(n: int, k: int, seed: int, symmetric: bool) -> None:
    matrix, rng = drawn(n, seed, symmetric=symmetric), np.random.default_rng(seed)
    fine = Level.finest(directed(matrix), entries(matrix))
    first = np.unique(rng.integers(0, max(2, n // 3), n), return_inverse=True)[1].astype(np.int32)
    coarse = fine.contracted(first)
    second = np.unique(rng.integers(0, 5, len(coarse.weight)), return_inverse=True)[1].astype(np.int32)
    for level, cluster in ((coarse, first), (coarse.contracted(second), second[first])):
        assert level.weight.sum() == matrix.nnz
        assert all(a <= b for a, b in pairwise(level.owner))
        parts = rng.integers(0, k, len(level.weight)).astype(np.int32)
        found, send = level.refined(parts, k, MoveRule(matrix.nnz, FREE, 64), penalty=8, seed=seed)
        assert (volumes(matrix, found[cluster], k).send == send).all()


def test_clusters_stay_in_their_part_and_below_their_limit() -> None:
    matrix = cliques(32, 8)
    level, parts = Level.finest(directed(matrix), entries(matrix)), (np.arange(256) // 64).astype(np.int32)
    for limit, most in ((72, 64), (30, 160)):  # a clique has 58 entries
        found = level.clusters(parts, limit, seed=1)
        assert set(found) == set(range(found.max() + 1))
        assert np.bincount(found, weights=level.weight).max() <= limit
        assert all(len(set(parts[found == c])) == 1 for c in range(found.max() + 1))
        assert found.max() + 1 <= most
    assert level.clusters(parts, 1, seed=1).max() == 255


def test_a_heavy_part_is_relieved_at_a_loss() -> None:
    """Six cliques against two, and no vertex leaves its clique for nothing."""
    matrix, parts = cliques(8, 8), (np.arange(64) >= 48).astype(np.int32)
    level, cap = Level.finest(directed(matrix), entries(matrix)), int(1.1 * matrix.nnz / 2)
    found, send = level.refined(parts, 2, MoveRule(cap, FREE, 64), penalty=8, seed=0)
    assert heaviest(matrix, parts, 2) > cap >= heaviest(matrix, found, 2)
    assert send.sum() > quality(matrix, parts, 2).total


@pytest.mark.parametrize("symmetric", [True, False])
def test_what_a_move_changes_is_foreseen(symmetric: bool) -> None:
    """At fixed prices of a row, for every vertex and part, compared with a new count of the blocks."""
    n, k = 30, 4
    matrix, rng = drawn(n, 1, symmetric=symmetric), np.random.default_rng(0)
    parts, price = rng.integers(0, k, n).astype(np.int32), rng.integers(1, 9, k)
    level = Level.finest(directed(matrix), entries(matrix))
    slots = np.r_[0, np.cumsum(np.minimum(np.diff(level.by_net[0]), k))]
    counts = np.zeros(slots[-1], np.int32), np.zeros(slots[-1], np.int32), np.zeros(n, np.int64)
    nets = level.owner, level.rows, *level.by_vertex, slots, *counts
    refine_numba._fill(parts, np.zeros(k, np.int64), *nets)
    before = int(volumes(matrix, parts, k).send @ price)
    for x in range(n):
        gain, own = np.zeros(k, np.int64), np.zeros(k, np.int64)
        base, every, _ = refine_numba._weigh(x, True, parts, price, gain, own, level.owned, *nets)
        a, changes = parts[x], {}
        for b in set(range(k)) - {int(a)}:
            moved = parts.copy()
            moved[x] = b
            changes[b] = int(volumes(matrix, moved, k).send @ price) - before
            assert changes[b] == base - gain[b] + price[b] * (every - own[b]) - price[a] * (every - own[a])
        load = np.zeros(k, np.int64)
        assert refine_numba._choose(a, base, every, price, gain, own, load, 0)[1] == min(changes.values())
        assert not gain.any()
        assert not own.any()


def test_the_best_that_was_seen_stays_though_the_total_falls_further() -> None:
    """Without a penalty moves go by the total alone, and past parts whose busiest sends less."""
    matrix = AmazonLike(vertices=1024, features=0, classes=0).load(0).adjacency
    parts = Gvb().parts(matrix, K, 0)
    before, cap = quality(matrix, parts, K), heaviest(matrix, parts, K)
    level = Level.finest(directed(matrix), entries(matrix))
    for seed in range(3):
        found, _ = cycle(level, parts, K, MoveRule(cap, FREE, 64), penalty=0, seed=seed)
        after = quality(matrix, found, K)
        assert (after.max_send, after.total) <= (before.max_send, before.total)


def test_a_ceiling_comes_before_the_busiest() -> None:
    """Parts of the least total that can be had by moves send less at most only for a larger one."""
    matrix = AmazonLike(vertices=1024, features=0, classes=0).load(0).adjacency
    level, parts = Level.finest(directed(matrix), entries(matrix)), Metis().parts(matrix, K, 0)
    for seed in range(4):
        parts, send = level.refined(parts, K, MoveRule(FREE, 0, 64), penalty=0, seed=seed)
    before, most = int(send.sum()), {}
    for ceiling in (before, FREE):
        _, send = cycle(level, parts, K, MoveRule(FREE, ceiling, 64), penalty=1000, seed=9)
        most[ceiling] = int(send.max())
        assert (send.sum() > before) == (ceiling == FREE)
    assert most[FREE] < most[before]


# The partitioner

CASES = {
    "grid": (grid(32), 8),
    "not a power of two": (grid(20), 7),
    "cliques": (cliques(40, 6), 8),
    "star": (star(300), 4),
    "star in two": (star(300), 2),  # whose centre alone is half of the entries
    "bipartite": (bipartite(100, 300), 8),
    "directed": (drawn(600, 1), 8),
    "dense": (drawn(64, 2, 40.0, symmetric=True), 8),
    "amazon": (AmazonLike(vertices=2048, features=0, classes=0).load(1).adjacency, 8),
    "one part": (grid(8), 1),
    "two parts": (grid(8), 2),
    "more parts than vertices": (grid(3), 20),
    "as many": (grid(3), 9),
    "no edges": (csr_array((30, 30)), 4),
    "loops alone": (csr_array(np.eye(30)), 4),
    "one vertex": (csr_array((1, 1)), 4),
    "one edge": (edges(50, (3, 7)), 4),
}


@pytest.mark.parametrize("case", CASES)
def test_gvb_is_never_worse_than_the_best_start(case: str) -> None:
    matrix, k = CASES[case]
    n, seed, cap = matrix.shape[0], 3, int(1.1 * matrix.nnz / k)
    parts = Gvb().parts(matrix, k, seed)
    assert parts.shape == (n,)
    assert parts.dtype == np.int32
    assert not n or 0 <= parts.min() <= parts.max() < k
    own = [Metis().parts(matrix, k, seed + number) for number in range(3)]
    kept = [start for start in own if heaviest(matrix, start, k) <= cap]
    found, starts = quality(matrix, parts, k), [quality(matrix, start, k) for start in kept or own]
    assert (found.max_send, found.total) <= min((start.max_send, start.total) for start in starts)
    assert heaviest(matrix, parts, k) <= (cap if kept else max(heaviest(matrix, start, k) for start in own))


def test_a_start_beyond_the_cap_is_no_measure_for_those_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all in one part, and moves next to nothing."""
    matrix, corner = grid(16), (np.arange(256) == 0).astype(np.int32)
    even = Metis().parts(matrix, 2, 0)
    monkeypatch.setattr(gvb, "kway", lambda pattern, k, seed, ufactor: (even, corner, corner)[seed])
    found = Gvb().parts(matrix, 2, 0)
    assert heaviest(matrix, found, 2) <= 1.1 * matrix.nnz / 2
    assert quality(matrix, found, 2).max_send <= quality(matrix, even, 2).max_send


def test_the_same_seed_finds_the_same_parts_and_another_others() -> None:
    matrix = AmazonLike(vertices=1024, features=0, classes=0).load(2).adjacency
    first = Gvb().parts(matrix, K, 5)
    assert (first == Gvb().parts(matrix, K, 5)).all()
    assert (first != Gvb().parts(matrix, K, 6)).any()
    other = csr_array(matrix)
    other.data = other.data * 3  # weights play no part
    assert (first == Gvb().parts(other, K, 5)).all()


def test_communities_gain_and_a_planted_partition_does_not() -> None:
    """Negative control: blocks of equal sizes that METIS finds leave nothing to gain."""
    source = AmazonLike(vertices=1 << 13, features=0, classes=0)
    planted = Planted(vertices=1 << 12, blocks=K, inside=14, outside=2, features=1)
    ratio = {}
    for name, matrix in (("amazon", source.load(0).adjacency), ("planted", planted.load(0).adjacency)):
        starts = [quality(matrix, Metis().parts(matrix, K, seed), K) for seed in range(5)]
        found = quality(matrix, Gvb().parts(matrix, K, 0), K)
        most, total = (float(np.median([getattr(s, key) for s in starts])) for key in ("max_send", "total"))
        ratio[name] = found.max_send / most
        assert found.total <= 1.005 * total
        assert found.nnz_imbalance <= 10
    assert ratio["amazon"] <= 0.80
    assert 0.97 <= ratio["planted"] <= 1.01


def test_vertices_in_another_order_are_partitioned_as_well() -> None:
    matrix = AmazonLike(vertices=2048, features=0, classes=0).load(3).adjacency
    order = np.random.default_rng(0).permutation(2048)
    turned = csr_array(matrix[order][:, order])
    plain, other = (quality(m, Gvb().parts(m, K, 0), K) for m in (matrix, turned))
    assert 0.75 <= other.max_send / plain.max_send <= 1 / 0.75
    parts = Gvb().parts(matrix, K, 0)
    assert quality(turned, parts[order], K) == plain  # the same parts under other numbers cost the same
    swapped = np.roll(np.arange(K, dtype=np.int32), 3)[parts]
    assert quality(matrix, swapped, K) == plain


def test_what_it_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gvb(kahip=2).notes() == () or Gvb(kahip=2).notes()[0].startswith("gvb without its 2 starts by KaHIP")
    here = gvb.find_spec
    monkeypatch.setattr(gvb, "find_spec", lambda name: None if name in ("numba", "kahip") else here(name))
    assert Gvb().notes() == ()
    assert Gvb(kahip=2).notes() == ("gvb without its 2 starts by KaHIP, which is not installed",)
    assert isinstance(Gvb().probe(), Missing)
    with pytest.raises(MissingDependency, match="numba"):
        partition(Gvb(), grid(4), 2, seed=0, folder=None)
    assert Gvb(kahip=1).parts(grid(6), 2, 0).shape == (36,)


@pytest.mark.parametrize(
    "settings", [{"starts": 0}, {"starts": True}, {"kahip": -1}, {"effort": 0}, {"imbalance": -0.1}, {"ufactor": 1.5}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(settings))):
        Gvb(**settings)  # type: ignore[arg-type]
