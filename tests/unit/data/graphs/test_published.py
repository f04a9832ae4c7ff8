"""Readers of published graph data sets, and refusal of hostile or broken files.

Every test writes its own tiny files in the published form: what is tested is the reading, not the data.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from suite.core.errors import InvalidRequest
from suite.data.graphs.published import Ogb, Reddit
from tests.support.refusals import fault, refused
from tests.unit.data.written import write

EDGES = [(0, 1), (1, 0), (1, 2), (3, 2), (4, 4)]  # 0 and 1 cite each other; 4 cites itself
FEATURES = np.arange(10, dtype=np.float32).reshape(5, 2)


def csv(rows: Any) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def ogb_text(folder: Path, name: str = "time", end: str = ".gz") -> Path:
    files = {
        "raw/edge": EDGES,
        "raw/num-node-list": [[5]],
        "raw/num-edge-list": [[5]],
        "raw/node-feat": FEATURES,
        "raw/node-label": [[2], [0], [1], [2], [0]],
        f"split/{name}/train": [[0], [3]],
        f"split/{name}/valid": [[1]],
        f"split/{name}/test": [[4]],
    }
    return write(folder, {f"{file}.csv{end}": csv(rows) for file, rows in files.items()})


def ogb_binary(folder: Path) -> Path:
    ogb_text(folder)
    for path in (folder / "raw").iterdir():
        path.unlink()
    counts = {"num_nodes_list": np.array([5]), "num_edges_list": np.array([5])}
    np.savez(folder / "raw/data.npz", edge_index=np.array(EDGES).T, node_feat=FEATURES, node_year=np.ones(5), **counts)
    labels = np.array([[2.0], [np.nan], [1.0], [2.0], [0.0]], np.float32)
    np.savez(folder / "raw/node-label.npz", node_label=labels)
    return folder


def parts(graph: Any) -> list[list[int]]:
    return [np.flatnonzero(part).tolist() for part in (graph.train, graph.validation, graph.test)]


def test_arxiv_is_read_and_joined_both_ways(tmp_path: Path) -> None:
    graph: Any = Ogb(name="ogbn-arxiv", folder=ogb_text(tmp_path)).load()
    expected = np.zeros((5, 5))
    for u, v in EDGES:
        expected[u, v] += 1
        expected[v, u] += u != v
    assert np.array_equal(graph.adjacency.toarray(), expected), "none merged: who cite each other have weight 2"
    assert graph.notes == ("4 reverse edges added", "2 duplicate edges added up")
    assert graph.symmetric
    assert np.array_equal(graph.features, FEATURES)
    assert (graph.labels.tolist(), graph.classes, graph.random) == ([2, 0, 1, 2, 0], 3, ())
    assert parts(graph) == [[0, 3], [1], [4]]
    one_way = Ogb(name="ogbn-arxiv", folder=tmp_path, symmetrise=False, features=False).load()
    assert (one_way.edges, one_way.symmetric, one_way.features) == (5, False, None)


def test_archive_in_its_own_folder_is_read(tmp_path: Path) -> None:
    ogb_text(tmp_path / "ogbn_products", "sales_ranking", end="")
    assert Ogb(name="ogbn-products", folder=tmp_path).load().vertices == 5


def test_papers_are_arrays_and_some_have_no_label(tmp_path: Path) -> None:
    graph: Any = Ogb(name="ogbn-papers100M", folder=ogb_binary(tmp_path)).load()
    assert graph.hash == Ogb(name="ogbn-arxiv", folder=ogb_text(tmp_path / "text")).load().hash
    assert graph.labels.tolist() == [2, -1, 1, 2, 0]
    assert np.array_equal(graph.features, FEATURES)
    assert Ogb(name="ogbn-papers100M", folder=tmp_path, features=False).load().features is None


def test_text_that_does_not_hold_together_is_refused(tmp_path: Path) -> None:
    for file, rows, expected in (
        ("raw/edge", [*EDGES, (5, 0)], fault(subject="(2, 6)", rule="(2, 5)")),
        ("raw/node-feat", FEATURES[:4], fault(subject="(4, 2)", rule="(5, f)")),
        ("raw/num-node-list", [[5], [6]], fault(subject="array of size 1")),
        ("raw/node-label", [[0.5]] * 5, fault(subject="label [0.5]")),
        ("split/time/test", [[5]], fault(subject="vertex [5] of a graph of 5")),
    ):
        write(ogb_text(tmp_path), {f"{file}.csv.gz": csv(rows)})
        with refused(InvalidRequest, **expected):
            Ogb(name="ogbn-arxiv", folder=tmp_path).load()


def test_a_pickle_among_the_arrays_is_refused(tmp_path: Path) -> None:
    path = ogb_binary(tmp_path) / "raw/data.npz"
    np.savez(path, **{**np.load(path), "node_feat": np.array([object()])})
    with refused(InvalidRequest, subject="allow_pickle=False"):
        Ogb(name="ogbn-papers100M", folder=tmp_path).load()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refused(InvalidRequest, subject="there is no folder"):
        Ogb(name="ogbn-arxiv", folder=tmp_path / "none").load()
    (ogb_text(tmp_path) / "raw/edge.csv.gz").unlink()
    with refused(InvalidRequest, subject="no raw/edge.csv.gz, or an empty one; its folder holds node-feat.csv.gz"):
        Ogb(name="ogbn-arxiv", folder=tmp_path).provenance()
    with refused(InvalidRequest, subject="ogbn-other: no split is known"):
        Ogb(name="ogbn-other", folder=tmp_path).load()


def reddit(folder: Path, **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    arrays = {
        "feature": FEATURES.astype(np.float64),
        "label": np.array([2, 0, 1, 2, 0], np.int32),
        "node_types": np.array([1, 1, 2, 3, 3]),
        "node_ids": np.arange(5),
    }
    np.savez(folder / "reddit_data.npz", **{**arrays, **changed})
    u, v = np.array([(0, 1), (1, 0), (1, 2), (2, 1)]).T
    sparse.save_npz(folder / "reddit_graph.npz", sparse.coo_matrix((np.ones(4), (u, v)), shape=(5, 5)))
    return folder


def test_reddit_is_read_with_the_self_loops_of_the_paper(tmp_path: Path) -> None:
    graph: Any = Reddit(folder=reddit(tmp_path)).load()
    assert (graph.vertices, graph.edges, graph.classes, graph.symmetric) == (5, 4 + 5, 3, True)
    assert (graph.notes, graph.features.dtype) == (("5 self loops added",), np.float32)
    assert parts(graph) == [[0, 1], [2], [3, 4]]
    assert Reddit(folder=tmp_path, loops=False).load().edges == 4
    some: Any = Reddit(folder=reddit(tmp_path, label=np.array([2, -7, 1, 2, 0]))).load()
    assert some.labels.tolist() == [2, -1, 1, 2, 0], "a negative label is none"
    for changed, said in (
        ({"node_types": np.array([1, 1, 2, 3, 0])}, "node_types [0]"),
        ({"node_types": np.ones(4)}, "5 features, 4 types"),
        ({"feature": FEATURES[:4]}, "4 features, a graph of"),
    ):
        with refused(InvalidRequest, subject=said):
            Reddit(folder=reddit(tmp_path, **changed)).load()


def test_provenance_is_of_the_files(tmp_path: Path) -> None:
    said = Reddit(folder=reddit(tmp_path)).provenance()
    data = (tmp_path / "reddit_data.npz").read_bytes() + (tmp_path / "reddit_graph.npz").read_bytes()
    assert said == {"name": "reddit", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
