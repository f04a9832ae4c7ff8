"""All partitioners, and the partition cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing, Ready
from suite.gnn.partition import Partitioner, partition
from suite.gnn.partition.metis import Metis, assign_isolated, directed_pattern, entries_per_row, undirected_pattern
from suite.gnn.partition.protocol import fingerprint, quality_of
from suite.gnn.partition.simple import Block, External, Random
from suite.gnn.plan import IntArray, count_volumes


def graph(n: int, seed: int = 0, degree: float = 6.0, *, symmetric: bool = True) -> csr_array:
    density = min(1.0, degree / max(n, 1) / (1 + symmetric))
    matrix = csr_array(random_array((n, n), density=density, rng=np.random.default_rng(seed), format="csr"))
    return csr_array(matrix + matrix.T) if symmetric else matrix


@dataclass(frozen=True)
class Counting(Partitioner):
    """A cached partitioner that records the seed of each call."""

    seeds: list[int] = field(repr=False)
    setting: int = 0
    packages = ("numpy",)

    def probe(self) -> Ready | Missing:
        return Ready() if self.setting >= 0 else Missing("setting is negative")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        self.seeds.append(seed)
        return ((np.arange(matrix.shape[0]) + seed) % k).astype(np.int32)


def test_quality_of_a_small_partition() -> None:
    """Two parts of two vertices, edges 0-1, 1-2 and 1-3, and a self loop at 0; counted by hand."""
    matrix = csr_array(np.array([[1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]]))
    costs = quality_of(count_volumes(matrix, np.array([0, 0, 1, 1]), 2))
    names = ["nnz_imbalance", "vertex_imbalance", "edge_cut", "total", "max_send", "max_receive", "max_pair"]
    assert list(costs) == [*names, "imbalance"]
    assert [*costs.values()] == pytest.approx([100 * (5 / 3.5 - 1), 0, 4, 3, 2, 2, 2, 100 * (2 / 1.5 - 1)])


@pytest.mark.parametrize("partitioner", [Block(), Random(), Metis()], ids=lambda p: p.name)
def test_parts_are_complete_and_reproducible(partitioner: Partitioner) -> None:
    for n, k in ((1, 1), (1, 3), (5, 8), (60, 1), (64, 8), (61, 7), (400, 5)):
        matrix = graph(n)
        parts = partitioner.parts(matrix, k, 3)
        assert parts.shape == (n,)
        assert parts.dtype == np.int32
        assert 0 <= parts.min() <= parts.max() < k
        assert (parts == partitioner.parts(matrix, k, 3)).all()
        if not isinstance(partitioner, Metis):
            assert np.ptp(np.bincount(parts, minlength=k)) <= 1
    assert partitioner.seedable == bool((parts != partitioner.parts(matrix, k, 4)).any())


def test_isolated_vertices_even_out_part_sizes() -> None:
    """More than half of the vertices have only a self loop, which METIS alone does not balance."""
    inner = graph(200).tocoo()
    ends = np.r_[inner.row, 0:500], np.r_[inner.col, 0:500]
    matrix = csr_array((np.ones(len(ends[0])), ends), shape=(500, 500))
    quality = partition(Metis(), matrix, 4, seed=0, folder=None).quality
    assert (quality["vertex_imbalance"] < 1, quality["nnz_imbalance"] < 6) == (True, True)
    without_edges = partition(Metis(), csr_array((10, 10)), 4, seed=0, folder=None)
    assert sorted(np.bincount(without_edges.parts)) == [2, 2, 3, 3]
    # part 0 has few vertices and most entries, so vertices with entries go to part 1
    parts = np.r_[np.zeros(2), np.ones(10), np.full(8, -1)].astype(np.int32)
    weight = np.r_[np.full(2, 50), np.full(10, 8), np.ones(8)].astype(np.int64)
    assert (assign_isolated(parts, weight, 2, imbalance=0.0)[12:] == 1).all()
    weight[12:] = 0
    assert (assign_isolated(parts, weight, 2, imbalance=0.0)[12:] == 0).all()
    assert sorted(np.bincount(assign_isolated(np.full(9, -1, np.int32), np.ones(9), 4, imbalance=0.0))) == [2, 2, 2, 3]


def test_patterns_drop_diagonal_and_duplicates() -> None:
    matrix = graph(50, symmetric=False) + csr_array(np.diag(np.arange(50.0)))
    dense = (matrix.toarray() != 0) & ~np.eye(50, dtype=bool)
    assert (directed_pattern(matrix).toarray() == dense).all()
    assert (undirected_pattern(matrix).toarray() == dense | dense.T).all()
    twice = csr_array((np.ones(4), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), shape=(2, 2))
    assert directed_pattern(twice).nnz == 2
    assert entries_per_row(twice).tolist() == [2, 2]


def test_partition_is_computed_once_and_cached(tmp_path: Path) -> None:
    matrix, counting = graph(40), Counting([])
    first = partition(counting, matrix, 4, seed=7, folder=tmp_path / "cache")
    again = partition(counting, matrix, 4, seed=7, folder=tmp_path / "cache")
    assert counting.seeds == [7]
    assert (first.cached, again.cached) == (False, True)
    assert (first.parts == again.parts).all()
    assert first.quality == again.quality
    assert first.seconds == again.seconds
    partition(counting, matrix, 4, seed=7, folder=None)
    assert counting.seeds == [7, 7]


def test_cache_key_covers_every_input() -> None:
    matrix, counting, other = graph(40), Counting([]), csr_array(graph(40))
    other.data = other.data * 2
    looped = csr_array(matrix + csr_array(np.eye(40)))
    same = fingerprint(counting, matrix, 4, 7)
    assert fingerprint(counting, other, 4, 7) == same
    assert fingerprint(Block(), matrix, 4, 7) == fingerprint(Block(), matrix, 4, 8)
    different = [fingerprint(counting, *inputs) for inputs in ((matrix, 5, 7), (matrix, 4, 8), (looped, 4, 7))]
    partitioners = (Counting([], setting=1), Metis(), Metis(ufactor=100))
    different += [
        fingerprint(counting, graph(40, 1), 4, 7),
        *(fingerprint(each, matrix, 4, 7) for each in partitioners),
    ]
    assert len({same, *different}) == 8


@pytest.mark.parametrize("fault", ["cut", "range", "pickle"])
def test_damaged_cache_file_is_recomputed(tmp_path: Path, fault: str) -> None:
    matrix, counting = graph(40), Counting([])
    good = partition(counting, matrix, 4, seed=1, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    else:
        np.savez(file, seconds=1.0, parts=good.parts + 3 if fault == "range" else np.array([{}], object))
    assert [partition(counting, matrix, 4, seed=1, folder=tmp_path).cached for _ in range(2)] == [False, True]
    assert counting.seeds == [1, 1]
    assert [*tmp_path.iterdir()] == [file], "and no temporary file"


def test_partitioner_that_is_not_ready_is_refused() -> None:
    with pytest.raises(MissingDependency, match="setting is negative"):
        partition(Counting([], setting=-1), graph(4), 2, seed=0, folder=None)


@pytest.mark.parametrize("k", [2, 3, 8])
def test_metis_leaves_no_part_empty_and_prints_nothing(k: int, capfd: pytest.CaptureFixture[str]) -> None:
    """From one vertex more than parts upwards, on a cycle and on disjoint pairs."""
    pytest.importorskip("pymetis")
    for n in (k + 1, 2 * k - 1, 2 * k, 2 * k + 2, 3 * k):
        at = np.arange(n)
        for ends in ((at + 1) % n, np.minimum(at ^ 1, n - 1)):
            matrix = csr_array((np.ones(n), (at, ends)), shape=(n, n))
            for seed in range(3):
                counts = np.bincount(Metis().parts(matrix, k, seed), minlength=k)
                assert counts.min() > 0
                if n < 2 * k - 1:
                    assert counts.max() <= 2
    assert capfd.readouterr() == ("", "")


def external(folder: Path, text: str, name: str = "a.part") -> External:
    (folder / name).write_text(text)
    return External(str(folder / name))


def test_external_file_of_parts_or_sizes(tmp_path: Path) -> None:
    for text, parts in (
        ("0\n1\n1\n0\n", [0, 1, 1, 0]),
        ("1 3\n", [0, 1, 1, 1]),
        (" 4\n0", [0, 0, 0, 0]),
    ):
        each = external(tmp_path, text)
        assert each.probe() == Ready()
        assert each.parts(graph(4), 2, 0).tolist() == parts
    # the name decides if there are as many parts as vertices
    assert external(tmp_path, "2 0 0 2", "a.part-sizes").parts(graph(4), 4, 0).tolist() == [0, 0, 3, 3]


def test_invalid_or_missing_external_file_is_refused(tmp_path: Path) -> None:
    for text, subject in (
        ("0 1 2 0", "vertex 2 is in part 2"),
        ("0 1 1", "3 numbers that sum to 2"),
        ("0 1 1.5 0", "'1.5'"),
        ("0 1 1 " + "9" * 5000, "a.part"),
        ("3 2", "2 numbers that sum to 5"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            external(tmp_path, text).parts(graph(4), 2, 0)
        assert subject in str(refusal.value)
    missing = External(str(tmp_path / "none.part"))
    assert isinstance(missing.probe(), Missing)
    with pytest.raises(InvalidRequest):
        missing.parts(graph(4), 2, 0)
