"""Reader of Reddit, as PyTorch Geometric distributes it; the published files are read without that package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.core.errors import refuse
from suite.data.graphs.graph import Graph
from suite.data.reading import COLUMN, REAL, TABLE, WHOLE, archive, classes_of, file_provenance, located


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
        shape = tuple(graph["shape"])
        found = f"{self.folder}: {n} features, {len(types)} types, a graph of {shape}"
        strange = types[~np.isin(types, (1, 2, 3))]
        refuse(
            [
                (len(types) != n or shape != (n, n), found, "one of each per vertex"),
                (len(strange), f"{data}: node_types {strange[:1]}", "1 is train, 2 validation, 3 test"),
            ]
        )
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
