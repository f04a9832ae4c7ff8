"""Reader of Reddit, as PyTorch Geometric distributes it; the published files are read without that package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suite.core.errors import refuse
from suite.data.graphs.graph import Graph
from suite.data.reading import archive, classes_of, file_provenance, located, readable


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
