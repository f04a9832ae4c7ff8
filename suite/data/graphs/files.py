"""Decides how a graph of one's own is read: Matrix Market, a scipy archive, or a list of edges.

Such a file holds edges alone; features and labels are drawn, as the paper's are for Amazon and Protein, and marked so.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from suite.core.errors import Refused
from suite.data.graphs.drawn import CLASSES, FEATURES, TRAIN, VALIDATION, dressed
from suite.data.graphs.graph import Graph
from suite.data.graphs.reading import archive, existing, sealed, table

Edges = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, int]  # sources, targets, weights, vertices


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """What every file has.

    file: its path
    symmetrise: add the reverse of every edge; where that is there already, the weights add up
    weighted: False gives every edge that is in the file, once or more often, the weight 1
    features, classes: width and number of the random features and labels; 0 leaves them out
    train, validation: shares of the vertices, the rest is test
    """

    file: str | os.PathLike[str]
    symmetrise: bool = False
    weighted: bool = True
    features: int = FEATURES
    classes: int = CLASSES
    train: float = TRAIN
    validation: float = VALIDATION

    @property
    def name(self) -> str:
        """The file's, without what says its form."""
        return Path(self.file).name.partition(".")[0]

    def load(self, seed: int) -> Graph:
        """The graph, with the features and labels of `seed`."""
        u, v, weights, n = self._read(existing(self.name, self.file))
        counts = {"features": self.features, "classes": self.classes}
        dress = dressed(n, **counts, train=self.train, validation=self.validation, seed=seed)
        kept = weights if self.weighted else None
        graph = Graph.of(self.name, u, v, n, kept, symmetrise=self.symmetrise, **dress)
        if not self.weighted:
            graph.adjacency.data[:] = 1
        return graph

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and sha256 of the file."""
        return sealed(self.name, [existing(self.name, self.file)])

    def _read(self, path: Path) -> Edges:
        raise NotImplementedError


class MatrixMarket(FromFile):
    """A sparse matrix in Matrix Market's exchange format, .mtx or .mtx.gz: real, integer or pattern, and general or
    symmetric; of a symmetric one both triangles are made, and a pattern's weights are 1."""

    def _read(self, path: Path) -> Edges:
        try:
            rows, columns, _entries, form, kind, _symmetry = io.mminfo(path)
            if form != "coordinate" or kind not in ("real", "integer", "unsigned-integer", "pattern"):
                raise Refused(f"{path}: {form} of {kind}", rule="coordinates of numbers", legal="coordinate real")
            matrix = sparse.coo_array(io.mmread(path)) if rows == columns else None
        except (ValueError, OSError, EOFError, OverflowError, StopIteration) as error:
            raise Refused(f"{path}: {error}", rule="the Matrix Market format", legal="%%MatrixMarket ...") from error
        if matrix is None:
            raise Refused(f"{path}: {rows} x {columns}", rule="a square matrix", legal=f"{rows} x {rows}")
        weights = None if kind == "pattern" else matrix.data
        return matrix.coords[0], matrix.coords[1], weights, rows


class Npz(FromFile):
    """A matrix as scipy.sparse.save_npz writes it, in csr, csc or coo form."""

    def _read(self, path: Path) -> Edges:
        form = archive(path, ["format"])["format"].item()
        form = form.decode("ascii", "replace") if isinstance(form, bytes) else str(form)
        if form not in ("csr", "csc", "coo"):
            raise Refused(f"{path}: a matrix in {form} form", rule="csr, csc or coo", legal="csr")
        try:
            loaded = sparse.load_npz(path)
            if form != "coo":  # before its indices are followed
                loaded.check_format(full_check=True)
            matrix = sparse.coo_array(loaded)
        except (ValueError, KeyError, OSError) as error:
            raise Refused(f"{path}: {error}", rule="what scipy.sparse.save_npz writes", legal="csr") from error
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise Refused(f"{path}: a matrix of {matrix.shape}", rule="square", legal="one row per vertex")
        weights = matrix.data.astype(np.float64) if matrix.data.dtype.kind == "b" else matrix.data
        return matrix.coords[0], matrix.coords[1], weights, int(matrix.shape[0])


@dataclass(frozen=True, kw_only=True)
class EdgeList(FromFile):
    """A text, plain or .gz, of one edge a line: source, target and, if there is a third column, weight. Columns are
    separated by blanks, or by commas where the first line of numbers has one; lines after # or % are comments.

    vertices: how many there are; None is one more than the largest number
    first: number of the first vertex, 0 or 1
    compact: leave out the numbers that no edge has, and number the rest anew in their order
    """

    vertices: int | None = None
    first: int = 0
    compact: bool = False

    def _read(self, path: Path) -> Edges:
        rows = table(path, np.float64, delimiter=_delimiter(path))
        if rows.size and rows.shape[1] not in (2, 3):
            raise Refused(f"{path}: {rows.shape[1]} columns", rule="source, target, and a weight or none", legal="0 1")
        if not len(rows) and self.vertices is None:
            raise Refused(f"{path}: no edge, and no number of vertices", rule="one of both", legal="vertices=1")
        ends = rows[:, :2] - self.first if rows.size else np.zeros((0, 2))
        odd = np.flatnonzero((ends != np.floor(ends)).any(axis=1) | ~np.isfinite(ends).all(axis=1))
        if len(odd):
            raise Refused(
                f"{path}: edge {odd[0]} is {rows[odd[0]].tolist()}", rule="vertices are whole numbers", legal="0 1"
            )
        ids = ends.astype(np.int64)
        weights = rows[:, 2] if rows.size and rows.shape[1] == 3 else None
        if self.compact:
            if len(ids) and ids.min() < 0:
                raise Refused(f"{path}: vertex {ids.min() + self.first}", rule=f"numbered from {self.first}", legal="0")
            numbers, places = np.unique(ids, return_inverse=True)
            ids, counted = places.reshape(ids.shape), max(len(numbers), 1)
        else:
            counted = int(ids.max(initial=-1)) + 1
        n = counted if self.vertices is None else self.vertices
        return ids[:, 0], ids[:, 1], weights, n


def _delimiter(path: Path) -> str | None:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in file:
                if line.strip() and line.lstrip()[0] not in "#%":
                    return "," if "," in line else None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {error}", rule="a text of edges", legal="0 1") from error
    return None
