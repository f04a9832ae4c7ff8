"""Readers of Open Graph Benchmark data sets and of Reddit, from the raw files of their archives.

Arxiv and Products are compressed text, Papers is a set of arrays. All store one direction of each edge. The paper uses
Papers with both directions, and so does this reader for all: it adds reverse edges and merges none, so two papers that
cite each other are joined with weight 2 (decision G8). Reddit is read as PyTorch Geometric distributes it, without that
package.
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
from suite.data.reading import archive, classes_of, file_provenance, located, mask_of, readable, table

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
        with readable(self.folder, f"the published files of {self.name}"):
            edges, features, labels, n, m = (_binary if "data" in paths else _text)(paths, self.features)
            table_of = None if features is None else features.astype(np.float32, copy=False)
        refuse([(edges.shape != (2, m), f"{self.folder}: edges of shape {edges.shape}", f"(2, {m}), as counted")])
        numbers, classes = classes_of(paths["labels"], labels, n)
        masks = [mask_of(paths[part], table(paths[part], np.int64, columns=1)[:, 0], n) for part in PARTS]
        parts = dict(zip(("train", "validation", "test"), masks, strict=True))
        attributes: Any = {"features": table_of, "labels": numbers, "classes": classes, **parts}
        return Graph.of(self.name, edges[0], edges[1], n, symmetrise=self.symmetrise, **attributes)

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


Read = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any], int, int]  # edges, features, labels, vertices, edges


def _gz(name: str) -> tuple[str, str]:
    return f"{name}.gz", name


def _text(paths: dict[str, Path], features: bool) -> Read:
    n, m = (table(paths[count], np.int64).item() for count in ("vertex count", "edge count"))
    rows = table(paths["features"], np.float32) if features else None
    return table(paths["edges"], np.int64, columns=2).T, rows, table(paths["labels"], np.float64), n, m


def _binary(paths: dict[str, Path], features: bool) -> Read:
    (labels,) = archive(paths["labels"], ["node_label"])
    edges, n, m = archive(paths["data"], ["edge_index", "num_nodes_list", "num_edges_list"])
    rows = archive(paths["data"], ["node_feat"])[0] if features else None
    return edges, rows, labels, n.item(), m.item()


@dataclass(frozen=True, kw_only=True)
class Reddit:
    """Posts of one month, joined if one user commented on both (Hamilton, Ying, Leskovec, NeurIPS 2017).

    Attributes:
        folder: Folder with reddit_data.npz and reddit_graph.npz.
        loops: Whether every vertex gets a self loop, as in the count of the paper's Table 3 (decision G8).
    """

    folder: str | os.PathLike[str]
    loops: bool = True

    @property
    def name(self) -> str:
        return "reddit"

    def load(self, seed: int = 0) -> Graph:
        """The graph; it does not depend on the seed."""
        data, edges = self._paths()
        features, raw, types = archive(data, ["feature", "label", "node_types"])
        row, column, weights, shape = archive(edges, ["row", "col", "data", "shape"])
        with readable(data, "an array of numbers per vertex"):
            n, features = len(features), features.astype(np.float32, copy=False)
            strange = types[~np.isin(types, (1, 2, 3))]
        refuse(
            [
                (tuple(shape) != (n, n), f"{self.folder}: {n} features, a graph of {shape}", "one of each per vertex"),
                (len(strange), f"{data}: node_types {strange[:1]}", "1 is train, 2 validation, 3 test"),
                (types.shape != (n,), f"{data}: {n} features, {len(types)} types", "one of each per vertex"),
            ]
        )
        labels, classes = classes_of(data, raw, n)
        parts = {part: types == number for number, part in enumerate(("train", "validation", "test"), 1)}
        attributes: Any = {"features": features, "labels": labels, "classes": classes, **parts}
        return Graph.of(self.name, row, column, n, weights, loops=self.loops, **attributes)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the files that are read."""
        return file_provenance(self.name, self._paths())

    def _paths(self) -> list[Path]:
        return located(self.name, self.folder, ["reddit_data.npz", "reddit_graph.npz"])
