"""Reader of Open Graph Benchmark data sets, from the raw files of their archives.

Arxiv and Products are compressed text, Papers is a set of arrays. All store one direction of each edge. The paper uses
Papers with both directions, and so does this reader for all: it adds reverse edges and merges none, so two papers that
cite each other are joined with weight 2 (decision G8).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import refuse
from suite.data.graphs.graph import Graph
from suite.data.reading import (
    COLUMN,
    COUNT,
    PAIRS,
    TABLE,
    archive,
    classes_of,
    file_provenance,
    located,
    mask_of,
    table,
)

SPLITS = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking", "ogbn-papers100M": "time"}  # the benchmark's own
UNPACKED = {"ogbn-arxiv": "arxiv", "ogbn-products": "products", "ogbn-papers100M": "papers100M-bin"}
PARTS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Ogb:
    """A graph for node property prediction.

    Attributes:
        name: Name in the benchmark, for example ogbn-arxiv.
        folder: Folder that holds raw and split, or its parent.
        split: Folder below split; None for the benchmark's own split.
        symmetrise: Whether reverse edges are added.
        features: Whether features are read: the features of Papers are 57 GB.
    """

    name: str
    folder: str | os.PathLike[str]
    split: str | None = None
    symmetrise: bool = True
    features: bool = True

    def load(self, seed: int = 0) -> Graph:
        """The graph; it does not depend on the seed."""
        paths = self._paths()
        read = _binary if "data" in paths else _text
        edges, features, labels, n = read(paths, self.features)
        numbers, classes = classes_of(paths["labels"], labels, n)
        masks = [mask_of(paths[part], table(paths[part], np.int64, columns=1)[:, 0], n) for part in PARTS]
        return Graph.of(
            self.name,
            edges[0],
            edges[1],
            n,
            symmetrise=self.symmetrise,
            features=None if features is None else features.astype(np.float32, copy=False),
            labels=numbers,
            classes=classes,
            train=masks[0],
            validation=masks[1],
            test=masks[2],
        )

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the files that are read."""
        return file_provenance(self.name, self._paths().values())

    def _paths(self) -> dict[str, Path]:
        split = self.split or SPLITS.get(self.name)
        rule = f"split is a folder under split, or name is one of {', '.join(SPLITS)}"
        refuse([(split is None, f"{self.name}: no split is known", rule)])
        root = Path(self.folder)
        nested = [root / name for name in (self.name.replace("-", "_"), UNPACKED.get(self.name, "")) if name]
        root = next((folder for folder in nested if (folder / "raw").is_dir()), root)
        paths: dict[str, tuple[str, ...]] = {part: _gz(f"split/{split}/{part}.csv") for part in PARTS}
        if (root / "raw" / "data.npz").is_file():
            paths |= {"data": ("raw/data.npz",), "labels": ("raw/node-label.npz",)}
        else:
            paths |= {"edges": _gz("raw/edge.csv"), "labels": _gz("raw/node-label.csv")}
            paths |= {"vertex count": _gz("raw/num-node-list.csv"), "edge count": _gz("raw/num-edge-list.csv")}
            if self.features:
                paths["features"] = _gz("raw/node-feat.csv")
        return dict(zip(paths, located(self.name, root, list(paths.values())), strict=True))


Read = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], int]  # edges [2, m], features, labels, vertices


def _gz(name: str) -> tuple[str, str]:
    return f"{name}.gz", name


def _text(found: dict[str, Path], features: bool) -> Read:
    n, m = (_one(found[count], table(found[count], np.int64)) for count in ("vertex count", "edge count"))
    edges = table(found["edges"], np.int64, columns=2).T
    rows = table(found["features"], np.float32) if features else None
    _check_counts(found["edges"], edges, rows, n, m)
    return edges, rows, table(found["labels"], np.float64), n


def _binary(found: dict[str, Path], features: bool) -> Read:
    path = found["data"]
    forms = {"edge_index": PAIRS, "num_nodes_list": COUNT, "num_edges_list": COUNT}
    data = archive(path, forms | ({"node_feat": TABLE} if features else {}))
    n, m = (_one(path, data[name]) for name in ("num_nodes_list", "num_edges_list"))
    _check_counts(path, data["edge_index"], data.get("node_feat"), n, m)
    labels = archive(found["labels"], {"node_label": COLUMN})["node_label"]
    return data["edge_index"], data.get("node_feat"), labels, n


def _check_counts(path: Path, edges: NDArray[Any], features: NDArray[Any] | None, vertices: int, count: int) -> None:
    shape = (vertices,) if features is None else features.shape
    refuse(
        [
            (edges.shape != (2, count), f"{path}: edges of shape {edges.shape}", f"(2, {count}), as counted"),
            (shape[:1] != (vertices,), f"{path}: features of shape {shape}", f"({vertices}, f), as counted"),
        ]
    )


def _one(path: Path, counts: NDArray[Any]) -> int:
    """Vertices of the single graph of a data set. Raises InvalidRequest for several graphs."""
    refuse([(counts.size != 1, f"{path}: {counts.size} graphs", "one graph: a data set named ogbn-...")])
    return int(counts.reshape(-1)[0])
