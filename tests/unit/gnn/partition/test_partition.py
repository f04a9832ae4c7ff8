"""All partitioners, and the partition cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing, Ready
from suite.gnn.partition import Partitioner, Quality, partition
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.pattern import Rows, directed, entries, spread, undirected
from suite.gnn.partition.protocol import fingerprint
from suite.gnn.partition.simple import Block, External, Random
from suite.gnn.plan import volumes


def graph(n: int, seed: int = 0, degree: float = 6.0, *, symmetric: bool = True) -> csr_array:
    density = min(1.0, degree / max(n, 1) / (1 + symmetric))
    found = csr_array(random_array((n, n), density=density, rng=np.random.default_rng(seed), format="csr"))
    return csr_array(found + found.T) if symmetric else found


@dataclass(frozen=True)
class Counting:
    """A costly partitioner that counts how often it is asked."""

    asked: list[int] = field(compare=False)
    setting: int = 0
    name: str = "counting"
    objective = "none"
    seedable = True
    packages = ("numpy",)

    def probe(self) -> Ready | Missing:
        return Ready() if self.setting >= 0 else Missing("its setting is negative")

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        self.asked.append(seed)
        return ((np.arange(matrix.shape[0]) + seed) % k).astype(np.int32)

    def notes(self) -> tuple[str, ...]:
        return ("counted",)


def kept(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_quality_is_what_the_blocks_count() -> None:
    """Two parts of two vertices, edges 0-1, 1-2, 1-3, and a loop at 0, by hand."""
    matrix = csr_array(np.array([[1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]]))
    found = Quality.of(volumes(matrix, np.array([0, 0, 1, 1]), 2))
    assert found == Quality(
        nnz_imbalance=pytest.approx(100 * (5 / 3.5 - 1)),
        vertex_imbalance=0.0,
        edge_cut=4,
        total=3,
        max_send=2,
        max_receive=2,
        max_pair=2,
        imbalance=pytest.approx(100 * (2 / 1.5 - 1)),
    )


@pytest.mark.parametrize("made", [Block(), Random(), Metis()], ids=lambda p: p.name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 3), (5, 8), (60, 1), (64, 8), (61, 7), (400, 5)])
def test_parts_are_complete_and_of_the_seed_alone(made: Partitioner, n: int, k: int) -> None:
    matrix = graph(n)
    parts = made.parts(matrix, k, 3)
    assert parts.shape == (n,)
    assert parts.dtype == np.int32
    assert 0 <= parts.min() <= parts.max() < k
    assert (parts == made.parts(matrix, k, 3)).all()
    if not isinstance(made, Metis):
        assert np.ptp(np.bincount(parts, minlength=k)) <= 1
    if n == 400:
        assert made.seedable == bool((parts != made.parts(matrix, k, 4)).any())


def test_vertices_without_edges_even_the_numbers_out() -> None:
    """Half of the vertices have no edge but a loop: METIS alone leaves them wherever they fall."""
    inner = graph(200)
    matrix = csr_array(
        (np.ones(inner.nnz + 500), (np.r_[inner.tocoo().row, 0:500], np.r_[inner.tocoo().col, 0:500])), shape=(500, 500)
    )
    found = partition(Metis(), matrix, 4, seed=0, folder=None)
    assert found.quality.vertex_imbalance < 1
    assert found.quality.nnz_imbalance < 6
    empty = partition(Metis(), csr_array((10, 10)), 4, seed=0, folder=None)
    assert sorted(np.bincount(empty.parts)) == [2, 2, 3, 3]
    assert empty.quality.total == 0


def test_lonely_vertices_do_not_overload_a_part() -> None:
    """Part 0 holds few vertices and nearly all entries: what weighs something goes elsewhere."""
    parts = np.r_[np.zeros(2), np.ones(10), np.full(8, -1)].astype(np.int32)
    weight = np.r_[np.full(2, 50), np.full(10, 8), np.ones(8)].astype(np.int64)
    found = spread(parts, weight, 2, room=0.0)
    assert (found[12:] == 1).all()
    weight[12:] = 0
    assert (spread(parts, weight, 2, room=0.0)[12:] == 0).all()
    assert sorted(np.bincount(spread(np.full(9, -1, np.int32), np.ones(9), 4, room=0.0))) == [2, 2, 2, 3]


def test_the_pattern_is_both_ways_round_and_without_loops() -> None:
    matrix = graph(50, symmetric=False) + csr_array(np.diag(np.arange(50.0)))
    dense = (matrix.toarray() != 0) & ~np.eye(50, dtype=bool)
    assert (directed(matrix).toarray() == dense).all()
    assert (undirected(matrix).toarray() == dense | dense.T).all()
    twice = csr_array((np.ones(4), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), shape=(2, 2))
    assert directed(twice).nnz == 2
    assert entries(twice).tolist() == [2, 2]


def test_a_costly_partition_is_made_once(tmp_path: Path) -> None:
    matrix, made = graph(40), Counting([])
    first = partition(made, matrix, 4, seed=7, folder=tmp_path / "kept")
    again = partition(made, matrix, 4, seed=7, folder=tmp_path / "kept")
    assert made.asked == [7]
    assert (first.cached, again.cached) == (False, True)
    assert (first.parts == again.parts).all()
    assert first.quality == again.quality
    assert first.seconds == again.seconds
    assert first.notes == again.notes == ("counted",)
    partition(made, matrix, 4, seed=7, folder=None)
    assert made.asked == [7, 7]


def test_what_decides_the_parts_decides_the_key() -> None:
    matrix, made = graph(40), Counting([])
    other = csr_array(matrix)
    other.data = other.data * 2
    same = fingerprint(made, matrix, 4, 7)
    assert fingerprint(made, other, 4, 7) == same
    keys = {
        same,
        fingerprint(made, matrix, 5, 7),
        fingerprint(made, matrix, 4, 8),
        fingerprint(made, graph(40, 1), 4, 7),
        fingerprint(made, csr_array(matrix + csr_array(np.eye(40))), 4, 7),
        fingerprint(Counting([], setting=1), matrix, 4, 7),
        fingerprint(Metis(), matrix, 4, 7),
        fingerprint(Metis(ufactor=100), matrix, 4, 7),
    }
    assert len(keys) == 8
    assert fingerprint(Block(), matrix, 4, 7) == fingerprint(Block(), matrix, 4, 8)


@pytest.mark.parametrize("fault", ["cut", "text", "foreign", "range", "length", "empty"])
def test_a_damaged_or_foreign_file_is_made_again(tmp_path: Path, fault: str) -> None:
    matrix, made = graph(40), Counting([])
    good = partition(made, matrix, 4, seed=1, folder=tmp_path)
    file = kept(tmp_path)
    with np.load(file) as found:
        content = dict(found)
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    elif fault == "text":
        file.write_text("no archive")
    elif fault == "empty":
        file.write_bytes(b"")
    else:
        if fault == "foreign":
            content["key"] = content["key"][::-1].copy()
        content["parts"] = {
            "foreign": content["parts"],
            "range": content["parts"] + 3,
            "length": np.zeros(3, np.int32),
        }[fault]
        np.savez(file, **content)
    assert partition(made, matrix, 4, seed=1, folder=tmp_path).cached is False
    assert made.asked == [1, 1]
    again = partition(made, matrix, 4, seed=1, folder=tmp_path)
    assert again.cached
    assert (again.parts == good.parts).all()
    assert kept(tmp_path) == file  # and no scratch beside it


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    matrix, made = graph(40), Counting([])
    partition(made, matrix, 4, seed=1, folder=tmp_path)
    with np.load(kept(tmp_path)) as found:
        content = dict(found)
    content["parts"] = np.array([{}], object)
    np.savez(kept(tmp_path), **content)
    assert partition(made, matrix, 4, seed=1, folder=tmp_path).cached is False


def test_what_cannot_be_partitioned_is_refused() -> None:
    for matrix, k, seed in ((csr_array((3, 4)), 2, 0), (graph(4), 0, 0), (graph(4), 2, -1), (graph(4), True, 0)):
        with pytest.raises(InvalidRequest):
            partition(Random(), matrix, k, seed=seed, folder=None)
    with pytest.raises(MissingDependency, match="its setting is negative"):
        partition(Counting([], setting=-1), graph(4), 2, seed=0, folder=None)
    with pytest.raises(InvalidRequest):
        Metis(ufactor=0)


def test_metis_cuts_less_than_chance_and_keeps_its_balance() -> None:
    side = np.arange(32 * 32).reshape(32, 32)
    u, v = np.r_[side[:, :-1].ravel(), side[:-1].ravel()], np.r_[side[:, 1:].ravel(), side[1:].ravel()]
    matrix = csr_array((np.ones(2 * len(u)), (np.r_[u, v], np.r_[v, u])), shape=(1024, 1024))
    by = {made.name: partition(made, matrix, 8, seed=0, folder=None).quality for made in (Random(), Metis())}
    assert by["metis"].total < 0.3 * by["random"].total
    assert by["metis"].nnz_imbalance <= 5


# Another program's


@pytest.mark.parametrize("k", [2, 3, 8, 40])
def test_metis_leaves_no_part_empty_and_says_nothing(k: int, capfd: pytest.CaptureFixture[str]) -> None:
    """From a vertex more than parts on; a cycle, and pairs that no other edge joins."""
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


@pytest.mark.parametrize(
    ("name", "text", "form", "parts"),
    [
        ("a.part", "0\n1\n1\n0\n", "auto", [0, 1, 1, 0]),
        ("a.part-sizes", "1 3\n", "auto", [0, 1, 1, 1]),
        ("a.part", "3 1", "sizes", [0, 0, 0, 1]),
        ("a.part", " 4\n0", "auto", [0, 0, 0, 0]),
    ],
)
def test_a_file_of_parts_or_of_sizes(tmp_path: Path, name: str, text: str, form: str, parts: list[int]) -> None:
    (tmp_path / name).write_text(text)
    found = External(str(tmp_path / name), form)
    assert found.probe() == Ready()
    assert found.parts(graph(4), 2, 0).tolist() == parts


def test_sizes_of_as_many_parts_as_vertices_go_by_the_name(tmp_path: Path) -> None:
    for name, parts in (("a.part", [2, 0, 0, 1]), ("a.part-sizes", [0, 0, 3, 3])):
        (tmp_path / name).write_text("2 0 0 1" if name == "a.part" else "2 0 0 2")
        assert External(str(tmp_path / name)).parts(graph(4), 4, 0).tolist() == parts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1 2 0", "vertex 2 is in part 2"),
        ("0 1 -1 0", "vertex 2 is in part -1"),
        ("0 1 1", "3 numbers that sum to 2"),
        ("0 1 1 0 1", "5 numbers that sum to 3"),
        ("0 1 1.5 0", "number 3 of 4 is '1.5'"),
        ("0 one", "number 2 of 2 is 'one'"),
        ("0 1\n1 +-5", "number 4 of 4 is '\\+-5', in line 2"),
        ("0 1 1 9223372036854775808", "is '9223372036854775808', in line 1"),
        ("0 1 1 " + "9" * 5000, "number 4 of 4"),
        ("0 1 1 \u0663", "number 4 of 4"),
        ("3 2", "2 numbers that sum to 5"),
        ("-1 5", "2 numbers that sum to 4"),
        ("", "0 numbers"),
    ],
)
def test_a_file_of_something_else_is_refused_with_its_numbers(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.part").write_text(text)
    with pytest.raises(InvalidRequest, match=said):
        External(str(tmp_path / "a.part")).parts(graph(4), 2, 0)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    found = External(str(tmp_path / "none.part"))
    assert isinstance(found.probe(), Missing)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        found.parts(graph(4), 2, 0)
    with pytest.raises(InvalidRequest):
        External("a.part", "guess")
