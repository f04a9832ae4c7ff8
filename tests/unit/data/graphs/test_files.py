"""Readers of a user's graph: each file format, and messages for bad files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import io, sparse

from suite.core.errors import InvalidRequest
from suite.data.graphs.files import EdgeList, MatrixMarket, Npz
from tests.support.refusals import fault, refused

DENSE = np.array([[0, 2.5, 0], [0, 1, 0], [4, 0, 0]])


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def market(kind: str, *lines: str) -> str:
    return "\n".join((f"%%MatrixMarket matrix {kind}", "% a comment", *lines)) + "\n"


@pytest.mark.parametrize("end", [".mtx", ".mtx.gz"])
def test_a_matrix_market_file_is_read(tmp_path: Path, end: str) -> None:
    path = written(tmp_path / f"g{end}", market("coordinate real general", "3 3 3", "1 2 2.5", "2 2 1", "3 1 4"))
    graph = MatrixMarket(file=path, features=4, classes=2).load(0)
    assert np.array_equal(graph.adjacency.toarray(), DENSE)
    assert (graph.name, graph.random, graph.classes) == ("g", ("features", "labels"), 2)
    assert graph.features is not None
    assert graph.features.shape == (3, 4)
    both = MatrixMarket(file=path, symmetrise=True, weighted=False).load(0)
    assert np.array_equal(both.adjacency.toarray(), [[0, 1, 1], [1, 1, 0], [1, 0, 0]])
    assert both.notes == ("2 reverse edges added",)
    assert both.symmetric


def test_both_triangles_of_a_symmetric_pattern_are_made(tmp_path: Path) -> None:
    path = written(tmp_path / "g.mtx", market("coordinate pattern symmetric", "3 3 2", "2 1", "3 3"))
    graph = MatrixMarket(file=path, features=0, classes=0).load(0)
    assert np.array_equal(graph.adjacency.toarray(), [[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    assert (graph.features, graph.labels, graph.random) == (None, None, ())


def test_entries_that_come_twice_are_added_up_and_noted(tmp_path: Path) -> None:
    path = written(tmp_path / "g.mtx", market("coordinate integer general", "2 2 3", "1 2 2", "1 2 3", "2 1 0"))
    graph = MatrixMarket(file=path).load(0)
    assert np.array_equal(graph.adjacency.toarray(), [[0, 5], [0, 0]])
    assert graph.notes == ("1 duplicate edges added up", "1 edges of weight 0 left out")
    pattern = MatrixMarket(file=path, weighted=False).load(0)
    assert pattern.notes == ("1 duplicate edges merged",)
    assert np.array_equal(pattern.adjacency.toarray(), [[0, 1], [1, 0]]), "an edge of the file, whatever its weight"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (market("coordinate real general", "2 3 1", "1 2 1"), fault(subject="2 x 3", rule="square")),
        (market("coordinate real general", "2 2 1", "3 1 1"), fault(subject="g.mtx", rule="the Matrix Market format")),
        (market("coordinate real general", "2 2 2", "1 1 1"), fault(subject="g.mtx", rule="the Matrix Market format")),
        (
            market("coordinate real general", "2 2 1", "1 2 nan"),
            fault(subject="weight nan at 0", rule="finite numbers"),
        ),
        (
            market("coordinate real general", "900000000000 900000000000 1", "1 2 1"),
            fault(subject="900000000000 vertices", rule="at most 2147483647"),
        ),
        (
            market("coordinate complex general", "2 2 1", "1 2 1 1"),
            fault(subject="coordinate of complex", rule="coordinates of numbers"),
        ),
        (market("array real general", "1 1", "1"), fault(subject="array of real", rule="coordinates of numbers")),
        ("1 2\n", fault(subject="g.mtx", rule="the Matrix Market format")),
        ("", fault(subject="is empty", rule="a file of a graph")),
    ],
)
def test_another_matrix_is_refused(tmp_path: Path, text: str, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        MatrixMarket(file=written(tmp_path / "g.mtx", text)).load(0)


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    text = market("coordinate real general", "3 3 3", "1 2 2.5", "2 2 1", "3 1 4")
    path = tmp_path / "g.mtx.gz"
    path.write_bytes(gzip.compress(text.encode())[:-12])
    with refused(InvalidRequest, subject="g.mtx.gz", rule="the Matrix Market format"):
        MatrixMarket(file=path).load(0)
    for kind in (MatrixMarket, Npz, EdgeList):
        with refused(InvalidRequest, subject="there is no file", rule="a file to read"):
            kind(file=tmp_path / "none").load(0)


@pytest.mark.parametrize("end", [".mtx", ".mtx.gz"])
def test_a_last_line_without_an_end_is_read_or_refused(tmp_path: Path, end: str) -> None:
    """Without the added line end, scipy's reader crashes the process."""
    text = market("coordinate real general", "3 3 3", "1 2 2.5", "2 2 1", "3 1 4")
    for tail in ("", " ", "\t"):
        graph = MatrixMarket(file=written(tmp_path / f"g{end}", text.rstrip() + tail)).load(0)
        assert np.array_equal(graph.adjacency.toarray(), DENSE)
    with refused(InvalidRequest, subject="Truncated", rule="the Matrix Market format"):
        MatrixMarket(file=written(tmp_path / f"g{end}", text.replace("\n2 2", "\r2 2"))).load(0)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_a_scipy_archive_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "g.npz"
    sparse.save_npz(path, sparse.csr_array(DENSE).asformat(form))
    assert np.array_equal(Npz(file=path).load(0).adjacency.toarray(), DENSE)
    sparse.save_npz(path, sparse.csr_matrix(DENSE != 0).asformat(form))
    assert np.array_equal(Npz(file=path).load(0).adjacency.toarray(), DENSE != 0)


def test_another_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    sparse.save_npz(path, sparse.csr_array(DENSE[:2]))
    with refused(InvalidRequest, subject="(2, 3)", rule="square"):
        Npz(file=path).load(0)
    sparse.save_npz(path, sparse.dia_array(DENSE))
    with refused(InvalidRequest, subject="dia form", rule="csr, csc or coo"):
        Npz(file=path).load(0)
    np.savez(path, adjacency=DENSE)
    with refused(InvalidRequest, subject="it holds adjacency, and no format", rule="it holds format"):
        Npz(file=path).load(0)
    np.savez(path, format=np.array("csr"), shape=(3, 3), data=np.array([object()]), indices=[0], indptr=[0, 1, 1, 1])
    with refused(InvalidRequest, subject="allow_pickle", rule="a numpy archive of plain arrays"):
        Npz(file=path).load(0)
    for indices, indptr in (([7], [0, 1, 1, 1]), ([0], [0, 9, 0, 1]), ([-1], [0, 1, 1, 1])):
        np.savez(path, format=np.array("csr"), shape=(3, 3), data=[1.0], indices=indices, indptr=indptr)
        with refused(InvalidRequest, subject="g.npz:", rule="what scipy.sparse.save_npz writes"):
            Npz(file=path).load(0)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("# source target\n0 1 2.5\n1 1 1\n2 0 4\n", {}, DENSE),
        ("0,1,2.5\n1,1,1\n2,0,4\n", {}, DENSE),
        ("% numbered from 1\n\n1\t2\n2 2 # its own\n3 1\n", {"first": 1}, DENSE != 0),
        ("0 1\n1 1\n2 0\n", {"vertices": 3}, DENSE != 0),
        ("10 20\n20 20\n500000 10\n", {"compact": True}, DENSE != 0),
        ("0 1\n", {"vertices": 3}, [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        ("# none\n", {"vertices": 2}, [[0, 0], [0, 0]]),
    ],
)
@pytest.mark.parametrize("end", [".txt", ".txt.gz"])
def test_a_list_of_edges_is_read(tmp_path: Path, end: str, text: str, arguments: dict[str, Any], expected: Any) -> None:
    graph = EdgeList(file=written(tmp_path / f"g{end}", text), **arguments).load(0)
    assert np.array_equal(graph.adjacency.toarray(), expected)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("0 1\n1 7\n", {"vertices": 3}, fault(subject="target 7 of edge 1", rule="vertices are 0 to 2")),
        ("0 1\n", {"first": 1}, fault(subject="source -1 of edge 0", rule="vertices are 0 to 0")),
        ("-1 1\n", {"compact": True}, fault(subject="vertex -1", rule="numbered from 0")),
        ("0 1\n1 2 3\n", {}, fault(subject="columns", rule="rows of float64 numbers")),
        ("0 1 2 3\n", {}, fault(subject="4 columns", rule="source, target, and a weight or none")),
        ("0 1.5\n", {}, fault(subject="edge 0 is '0 1.5'", rule="vertices are whole numbers below 2^53")),
        ("0 1\n0 nan\n", {}, fault(subject="edge 1 is", rule="vertices are whole numbers below 2^53")),
        ("0 1 inf\n", {}, fault(subject="weight inf at 0", rule="finite numbers")),
        ("a b\n", {}, fault(subject="could not convert", rule="rows of float64 numbers")),
        ("# from to\n0 1\n\n0 1e300 # far\n", {}, fault(subject="edge 1 is '0 1e300'", rule="below 2^53")),
        (
            "0 9007199254740993\n",
            {"compact": True},
            fault(subject="edge 0 is '0 9007199254740993'", rule="vertices are whole numbers below 2^53"),
        ),
        ("0 1000000000000\n", {}, fault(subject="1000000000001 vertices", rule="at most 2147483647")),
        ("# nothing\n", {}, fault(subject="no edge, and no number of vertices", rule="one of both")),
    ],
)
def test_a_bad_list_of_edges_is_refused(
    tmp_path: Path, text: str, arguments: dict[str, Any], expected: dict[str, object]
) -> None:
    with refused(InvalidRequest, **expected):
        EdgeList(file=written(tmp_path / "g.txt", text), **arguments).load(0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"vertices": -4}, fault("vertices", "-4")),
        ({"vertices": 2.5}, fault("vertices", "2.5")),
        ({"vertices": "x"}, fault("vertices", "'x'")),
        ({"first": 2}, fault("first", "2")),
        ({"features": -1}, fault("features", "-1")),
        ({"classes": 1.5}, fault("classes", "1.5")),
        ({"train": "x"}, fault("train", "'x'")),
    ],
)
def test_a_bad_setting_is_refused_before_the_file_is_read(
    arguments: dict[str, Any], expected: dict[str, object]
) -> None:
    with refused(InvalidRequest, **expected):
        EdgeList(file="none", **arguments)


@pytest.mark.parametrize("end", [".npz", ".stored.npz", ".mtx", ".mtx.gz", ".txt.gz"])
def test_a_file_with_any_byte_damaged_is_read_or_refused(tmp_path: Path, end: str) -> None:
    """No other exception is raised, whichever byte is damaged."""
    path, kind = (
        tmp_path / f"g{end}",
        {".mtx": MatrixMarket, ".mtx.gz": MatrixMarket, ".txt.gz": EdgeList}.get(end, Npz),
    )
    if end.endswith("npz"):
        sparse.save_npz(path, sparse.csr_array(DENSE), compressed=end == ".npz")
    else:
        lines = [f"{1 + i % 3} {1 + i % 2} {i}" for i in range(30)]
        head = market("coordinate real general", "3 3 30") if ".mtx" in end else "# edges\n"
        written(path, head + "\n".join(lines) + "\n")
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 1 + len(whole) // 120):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            kind(file=path, features=0, classes=0).load(0)
        except InvalidRequest as error:
            refused += "g." in str(error)
    assert refused > 10


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"shape": 3}, fault(subject="shape is int64 of shape", rule="whole numbers in 1 dimensions")),
        ({"shape": (3.0, 3.0)}, fault(subject="shape is float64", rule="whole numbers in 1 dimensions")),
        ({"shape": (2**40, 2**40)}, fault(subject="1099511627776 vertices", rule="at most 2147483647")),
        ({"format": ["csr", "csc"]}, fault(subject="format is <U3", rule="text in 0 dimensions")),
        ({"format": 3}, fault(subject="format is int64", rule="text in 0 dimensions")),
        ({"data": ["a"]}, fault(subject="data is <U1", rule="numbers in 1 dimensions")),
        ({"indices": 0.5}, fault(subject="indices is float64", rule="whole numbers in 1 dimensions")),
    ],
)
def test_an_archive_of_other_arrays_is_refused(
    tmp_path: Path, changed: dict[str, Any], expected: dict[str, object]
) -> None:
    arrays = {"format": "csr", "shape": (3, 3), "data": [1.0], "indices": [0], "indptr": [0, 1, 1, 1], **changed}
    np.savez(tmp_path / "g.npz", **arrays)
    with refused(InvalidRequest, **expected):
        Npz(file=tmp_path / "g.npz").load(0)


def test_the_forms_agree_and_features_are_those_of_the_seed(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "g.npz", sparse.csr_array(DENSE))
    io.mmwrite(tmp_path / "g.mtx", sparse.coo_matrix(DENSE))
    written(tmp_path / "g.txt", "".join(f"{u} {v} {DENSE[u, v]}\n" for u, v in np.argwhere(DENSE)))
    sources = [Npz(file=tmp_path / "g.npz"), MatrixMarket(file=tmp_path / "g.mtx"), EdgeList(file=tmp_path / "g.txt")]
    one, two, three = (source.load(5) for source in sources)
    assert one.hash == two.hash == three.hash
    assert np.array_equal(one.features, two.features)  # type: ignore[arg-type]
    assert not np.array_equal(one.features, sources[0].load(6).features)  # type: ignore[arg-type]
    said = sources[2].provenance()
    assert (said["name"], said["bytes"]) == ("g", (tmp_path / "g.txt").stat().st_size)
