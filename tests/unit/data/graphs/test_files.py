"""Readers of a user's graph: each file format, and refusal of bad files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from suite.core.errors import InvalidRequest
from suite.data.graphs.files import EdgeList, MatrixMarket, Npz
from tests.support.refusals import fault, refused
from tests.unit.data.written import write

DENSE = np.array([[0, 2.5, 0], [0, 1, 0], [4, 0, 0]])


def market(kind: str, *lines: str) -> str:
    return "\n".join((f"%%MatrixMarket matrix {kind}", "% a comment", *lines)) + "\n"


GENERAL = market("coordinate real general", "3 3 3", "1 2 2.5", "2 2 1", "3 1 4")


def load(kind: type, path: Path, content: str | bytes, **settings: Any) -> Any:
    write(path.parent, {path.name: content})
    return kind(file=path, **settings).load(0)


@pytest.mark.parametrize("end", [".mtx", ".mtx.gz"])
def test_a_matrix_market_file_is_read(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"g{end}"
    graph = load(MatrixMarket, path, GENERAL, features=4, classes=2)
    assert np.array_equal(graph.adjacency.toarray(), DENSE)
    assert (graph.name, graph.random, graph.classes, graph.features.shape) == ("g", ("features", "labels"), 2, (3, 4))
    both = MatrixMarket(file=path, symmetrise=True, weighted=False).load(0)
    assert np.array_equal(both.adjacency.toarray(), [[0, 1, 1], [1, 1, 0], [1, 0, 0]])
    assert (both.symmetric, both.notes) == (True, ("2 reverse edges added",))
    for tail in ("", " ", "\t"):  # without the added line end, scipy's reader crashes the process
        graph = load(MatrixMarket, path, GENERAL.rstrip() + tail)
        assert np.array_equal(graph.adjacency.toarray(), DENSE)
    with refused(InvalidRequest, subject="Truncated"):
        load(MatrixMarket, path, GENERAL.replace("\n2 2", "\r2 2"))


def test_symmetric_and_repeated_entries(tmp_path: Path) -> None:
    path = tmp_path / "g.mtx"
    pattern = market("coordinate pattern symmetric", "3 3 2", "2 1", "3 3")
    graph = load(MatrixMarket, path, pattern, features=0, classes=0)
    assert np.array_equal(graph.adjacency.toarray(), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]), "both triangles"
    assert (graph.features, graph.labels, graph.random) == (None, None, ())
    load(MatrixMarket, path, market("coordinate integer general", "2 2 3", "1 2 2", "1 2 3", "2 1 0"))
    merged = MatrixMarket(file=path, weighted=False).load(0)
    assert merged.notes == ("1 duplicate edges merged",)
    assert np.array_equal(merged.adjacency.toarray(), [[0, 1], [1, 0]]), "an edge of the file, whatever its weight"


def test_another_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.mtx"
    for text, subject in (
        (market("coordinate real general", "2 3 1", "1 2 1"), "2 x 3"),
        (market("coordinate real general", "2 2 1", "1 2 nan"), "weight nan"),
        (market("coordinate real general", "2147483648 2147483648 1", "1 2 1"), "2147483648 vertices"),
        (market("coordinate complex general", "2 2 1", "1 2 1 1"), "coordinate of complex"),
        ("", "or an empty one"),
    ):
        with refused(InvalidRequest, subject=subject):
            load(MatrixMarket, path, text)
    with refused(InvalidRequest, subject="g.mtx.gz"):
        load(MatrixMarket, tmp_path / "g.mtx.gz", gzip.compress(GENERAL.encode())[:-12])
    for kind in (MatrixMarket, Npz, EdgeList):
        with refused(InvalidRequest, subject="has no none"):
            kind(file=tmp_path / "none").load(0)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_a_scipy_archive_is_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "g.npz"
    sparse.save_npz(path, sparse.csr_array(DENSE).asformat(form))
    assert np.array_equal(Npz(file=path).load(0).adjacency.toarray(), DENSE)
    sparse.save_npz(path, sparse.csr_matrix(DENSE != 0).asformat(form))
    assert np.array_equal(Npz(file=path).load(0).adjacency.toarray(), DENSE != 0)


def test_another_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    for matrix, subject in ((sparse.csr_array(DENSE[:2]), "(2, 3)"), (sparse.dia_array(DENSE), "dia form")):
        sparse.save_npz(path, matrix)
        with refused(InvalidRequest, subject=subject):
            Npz(file=path).load(0)
    whole = {"format": "csr", "shape": (3, 3), "data": [1.0], "indices": [0], "indptr": [0, 1, 1, 1]}
    for changed, expected in (
        ({"data": np.array([object()])}, fault(subject="allow_pickle")),
        ({"indices": [7]}, fault(subject="g.npz:")),
        ({"shape": (2**31, 2**31)}, fault(subject="2147483648 vertices")),
        ({"data": ["a"]}, fault(subject="<U1")),
    ):
        np.savez(path, **{**whole, **changed})  # type: ignore[arg-type]
        with refused(InvalidRequest, **expected):
            Npz(file=path).load(0)


@pytest.mark.parametrize("end", [".txt", ".txt.gz"])
def test_a_list_of_edges_is_read(tmp_path: Path, end: str) -> None:
    for text, settings, expected in (
        ("# source target\n0 1 2.5\n1 1 1\n2 0 4\n", {}, DENSE),
        ("0,1,2.5\n1,1,1\n2,0,4\n", {}, DENSE),
        ("% numbered from 1\n\n1\t2\n2 2 # its own\n3 1\n", {"first": 1}, DENSE != 0),
        ("0 1\n1 1\n2 0\n", {"vertices": 3}, DENSE != 0),
        ("10 20\n20 20\n500000 10\n", {"compact": True}, DENSE != 0),
        ("0 1\n", {"vertices": 3}, [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        ("# none\n", {"vertices": 2}, [[0, 0], [0, 0]]),
    ):
        graph = load(EdgeList, tmp_path / f"g{end}", text, **settings)
        assert np.array_equal(graph.adjacency.toarray(), expected), text


def test_a_bad_list_of_edges_is_refused(tmp_path: Path) -> None:
    for text, settings, subject in (
        ("0 1\n1 7\n", {"vertices": 3}, "index 7 exceeds"),
        ("-1 1\n", {"compact": True}, "vertex -1"),
        ("0 1\n1 2 3\n", {}, "columns"),
        ("0 1.5\n", {}, "edge 0 is '0 1.5'"),
        ("0 9007199254740993\n", {"compact": True}, "edge 0 is '0 9007199254740993'"),
        ("0 1000000000000\n", {}, "1000000000001 vertices"),
        ("# nothing\n", {}, "no edge, and no number of vertices"),
        # a ring: vertices, edges, and the neighbours of each
        ("4 4\n2 4\n1 3\n2 4\n1 3\n", {}, "in METIS or Matrix Market form"),
    ):
        with refused(InvalidRequest, subject=subject):
            load(EdgeList, tmp_path / "g.txt", text, **settings)


@pytest.mark.parametrize("end", [".npz", ".stored.npz", ".mtx", ".mtx.gz", ".txt.gz"])
def test_a_file_with_any_byte_damaged_is_read_or_refused(tmp_path: Path, end: str) -> None:
    """No other exception is raised, whichever byte is damaged."""
    path, kind = tmp_path / f"g{end}", Npz
    if end.endswith("npz"):
        sparse.save_npz(path, sparse.csr_array(DENSE), compressed=end == ".npz")
    else:
        kind = MatrixMarket if ".mtx" in end else EdgeList
        lines = [f"{1 + i % 3} {1 + i % 2} {i}" for i in range(30)]
        head = market("coordinate real general", "3 3 30") if ".mtx" in end else "# edges\n"
        write(tmp_path, {path.name: head + "\n".join(lines) + "\n"})
    whole, refusals = path.read_bytes(), 0
    for at in range(0, len(whole), 1 + len(whole) // 120):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            kind(file=path, features=0, classes=0).load(0)
        except InvalidRequest as error:
            refusals += "g." in str(error)
    assert refusals > 10
