"""Reader of Reddit and of Planetoid's citation graphs, as PyTorch Geometric distributes them.

Both are read from the published files, without that package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from suite.core.errors import InvalidRequest, UnknownName
from suite.data.graphs.graph import Graph
from suite.data.graphs.safe_pickle import read
from suite.data.reading import (
    COLUMN,
    REAL,
    TABLE,
    WHOLE,
    archive,
    classes_of,
    file_provenance,
    located,
    mask_of,
    table,
)

PLANETOID = ("cora", "citeseer", "pubmed")
VALIDATION = 500  # vertices after the training vertices (Yang, Cohen, Salakhutdinov, ICML 2016, section 5.1)


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
        arrays = archive(data, {"feature": TABLE, "label": COLUMN, "node_types": COLUMN})
        graph = archive(edges, {"row": WHOLE, "col": WHOLE, "data": REAL, "shape": WHOLE})
        features, types = arrays["feature"], arrays["node_types"].reshape(-1)
        n = len(features)
        if len(types) != n or tuple(graph["shape"]) != (n, n):
            what = f"{self.folder}: {n} features, {len(types)} types, a graph of {tuple(graph['shape'])}"
            raise InvalidRequest(what, rule="one of each per vertex", legal=f"({n}, {n})")
        strange = np.flatnonzero(~np.isin(types, (1, 2, 3)))
        if len(strange):
            what = f"{data}: type {types[strange[0]]} of vertex {strange[0]}"
            raise InvalidRequest(what, rule="1 is train, 2 validation, 3 test", legal="1")
        labels, classes = classes_of(data, arrays["label"], n)
        return Graph.of(
            self.name,
            graph["row"],
            graph["col"],
            n,
            graph["data"],
            loops=self.loops,
            features=features.astype(np.float32, copy=False),
            labels=labels,
            classes=classes,
            train=types == 1,
            validation=types == 2,
            test=types == 3,
        )

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the files that are read."""
        return file_provenance(self.name, self._paths())

    def _paths(self) -> list[Path]:
        return located(self.name, self.folder, ["reddit_data.npz", "reddit_graph.npz"])


@dataclass(frozen=True, kw_only=True)
class Planetoid:
    """A citation graph in the split of Yang, Cohen and Salakhutdinov (Revisiting Semi-Supervised Learning, ICML 2016).

    Every edge counts once in each direction: duplicates are merged and self loops left out, which gives the counts
    that are commonly printed (Cora: 10556). CiteSeer's test vertices without features have no label either.

    Attributes:
        name: cora, citeseer or pubmed.
        folder: Folder with ind.cora.x, ind.cora.graph and so on. They are pickles, and none of their code runs.
        normalise: Whether to divide each vertex's features by their sum, as GCN's authors do.
    """

    name: str
    folder: str | os.PathLike[str]
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.name not in PLANETOID:
            raise UnknownName("citation graph", self.name, PLANETOID)

    def load(self, seed: int = 0) -> Graph:
        """The graph; it does not depend on the seed."""
        *pickles, listed = self._paths()
        tx, ally, ty, y, lists, allx = (read(path) for path in pickles)
        held_out = table(listed, np.int64, columns=1, delimiter=None)[:, 0]
        labelled = self._matrix("allx", allx).shape[0]
        if len(held_out) != self._matrix("tx", tx).shape[0] or not len(held_out) or held_out.min() < labelled:
            what = (
                f"{listed}: {len(held_out)} vertices from {held_out.min(initial=labelled)}, features of {tx.shape[0]}"
            )
            raise InvalidRequest(what, rule=f"as many, numbered from {labelled}", legal=str(labelled))
        n = int(held_out.max()) + 1
        features, labels = np.zeros((n, allx.shape[1]), np.float32), np.full(n, -1, np.int64)
        for places, rows, hot in ((np.arange(labelled), allx, ally), (held_out, tx, ty)):
            features[places] = rows.toarray()
            labels[places] = self._labels(hot, len(places))
        if self.normalise:
            sums = features.sum(axis=1, keepdims=True)
            features /= np.where(sums == 0, 1, sums)
        u, v, notes = self._edges(lists, n)
        bare = int((labels < 0).sum())
        if bare:
            notes.append(f"{bare} vertices without a label")
        first = len(y)
        train, validation = (np.isin(np.arange(n), part) for part in (range(first), range(first, first + VALIDATION)))
        return Graph.of(
            self.name,
            u,
            v,
            n,
            features=features,
            labels=labels,
            classes=ally.shape[1],
            train=train,
            validation=validation & (np.arange(n) < labelled),
            test=mask_of(listed, held_out, n),
            notes=tuple(notes),
        )

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the files that are read."""
        return file_provenance(self.name, self._paths())

    def _paths(self) -> list[Path]:
        ends = ("tx", "ally", "ty", "y", "graph", "allx", "test.index")
        return located(self.name, self.folder, [f"ind.{self.name}.{end}" for end in ends])

    def _matrix(self, end: str, value: Any) -> sparse.csr_array:
        if not isinstance(value, sparse.csr_array):
            raise InvalidRequest(f"ind.{self.name}.{end} is a {type(value).__name__}", rule="a csr matrix of features")
        return value

    def _labels(self, hot: Any, count: int) -> NDArray[np.int64]:
        """Labels from one column per class; a row of zeros has no label."""
        if not isinstance(hot, np.ndarray) or hot.ndim != 2 or len(hot) != count:
            shape = hot.shape if isinstance(hot, np.ndarray) else type(hot).__name__
            raise InvalidRequest(f"ind.{self.name}: labels {shape}", rule=f"({count}, classes), a column per class")
        return np.where(hot.any(axis=1), hot.argmax(axis=1), -1).astype(np.int64)

    def _edges(self, lists: Any, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
        """Both directions of every edge, each once."""
        if not isinstance(lists, dict):
            raise InvalidRequest(
                f"ind.{self.name}.graph is a {type(lists).__name__}", rule="a list of neighbours per vertex"
            )
        u = np.repeat(np.array([*lists], np.int64), [len(near) for near in lists.values()])
        v = np.array([other for near in lists.values() for other in near], np.int64)
        for ids in (u, v):
            mask_of(Path(f"ind.{self.name}.graph"), ids, n)
        ahead = u != v
        low, high = np.minimum(u, v)[ahead], np.maximum(u, v)[ahead]
        codes = np.unique(low * n + high)
        notes = [f"{int((~ahead).sum())} self loops left out"] if not ahead.all() else []
        notes.append(f"{len(u)} entries of neighbour lists made {len(codes)} edges of two directions")
        low, high = codes // n, codes % n
        return np.concatenate((low, high)), np.concatenate((high, low)), notes
