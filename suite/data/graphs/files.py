"""Readers of a user's graph: Matrix Market, a scipy archive, or a list of edges.

Such a file holds edges only. Features and labels are random, as the paper's are for Amazon and Protein, and the record
marks them as random.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from suite.config.base import Count
from suite.core.errors import Broken, refuse
from suite.data.graphs.graph import Graph
from suite.data.graphs.synthetic import RandomAttributes
from suite.data.reading import file_provenance, located, readable, table

Edges = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, int]  # sources, targets, weights, vertices
LARGEST = 2**31 - 1  # vertices: scipy's indices are int32 up to here, and so are part ids
EXACT = 2**53  # from here on float64, as which a text is read, does not hold every whole number


@dataclass(frozen=True, kw_only=True)
class FromFile(RandomAttributes):
    """Common settings of all files.

    Attributes:
        file: Path of the file.
        symmetrise: Whether to add the reverse of every edge. If the reverse is there already, the weights are added.
        weighted: Whether weights of the file count; False gives every edge the weight 1.
    """

    file: str | os.PathLike[str]
    symmetrise: bool = False
    weighted: bool = True

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return Path(self.file).name.partition(".")[0]

    def load(self, seed: int) -> Graph:
        """The graph, with features and labels of `seed`."""
        path = self._path()
        with readable(path, f"a file for {type(self).__name__}"):
            u, v, weights, n = self._read(path)
        refuse([_bounded(path, n)])
        edge_weights, merge = (weights, False) if self.weighted else (None, True)
        random = self.attributes(n, seed)
        return Graph.of(self.name, u, v, n, edge_weights, symmetrise=self.symmetrise, merge=merge, **random)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the file."""
        return file_provenance(self.name, [self._path()])

    def _path(self) -> Path:
        (path,) = located(self.name, Path(self.file).parent, [Path(self.file).name])
        return path

    def _read(self, path: Path) -> Edges:
        raise NotImplementedError


class MatrixMarket(FromFile):
    """A sparse matrix in Matrix Market format, .mtx or .mtx.gz: real, integer or pattern, general or symmetric.

    A symmetric file gives both triangles. The weights of a pattern are 1.
    """

    def _read(self, path: Path) -> Edges:
        rows, columns, _entries, form, kind, _symmetry = io.mminfo(path)
        numbers = form == "coordinate" and kind in ("real", "integer", "unsigned-integer", "pattern")
        refuse(
            [
                (not numbers, f"{path}: {form} of {kind}", "coordinates of numbers"),
                (rows != columns, f"{path}: {rows} x {columns}", "a square matrix"),
                _bounded(path, rows),
            ]
        )
        with _opened(path) as file:  # without a line end scipy's reader (1.17.1) ends the process
            matrix = sparse.coo_array(io.mmread(BytesIO(file.read() + b"\n")))
        return matrix.coords[0], matrix.coords[1], None if kind == "pattern" else matrix.data, rows


class Npz(FromFile):
    """A matrix as scipy.sparse.save_npz writes it, in csr, csc or coo form."""

    def _read(self, path: Path) -> Edges:
        with np.load(path, allow_pickle=False) as file:
            refuse([_bounded(path, int(file["shape"].max()))])
        packed = sparse.load_npz(path)  # without pickles
        form = packed.format
        refuse(
            [
                (form not in ("csr", "csc", "coo"), f"{path}: a matrix in {form} form", "csr, csc or coo"),
                (len({2, packed.ndim}) + len({*packed.shape}) > 2, f"{path}: a matrix of {packed.shape}", "square"),
            ]
        )
        if form != "coo":
            packed.check_format(full_check=True)  # before its indices are followed
        matrix = sparse.coo_array(packed)
        weights = matrix.data.astype(np.float64) if matrix.data.dtype.kind == "b" else matrix.data
        return matrix.coords[0], matrix.coords[1], weights, int(matrix.shape[0])


@dataclass(frozen=True, kw_only=True)
class EdgeList(FromFile):
    """A text file, plain or .gz, with one edge per line: source, target and an optional weight.

    Columns are separated by blanks, or by commas if the first line of numbers has one. Text after # or % is a comment.

    Attributes:
        vertices: Number of vertices; None for one more than the largest number.
        first: Number of the first vertex, 0 or 1.
        compact: Whether to renumber the vertices that have edges, in their order, and leave out all others.
    """

    vertices: Count | None = None
    first: Literal[0, 1] = 0
    compact: bool = False

    def _read(self, path: Path) -> Edges:
        rows = table(path, np.float64, delimiter=_delimiter(path))
        count, columns = rows.shape if rows.size else (0, 2)
        metis = columns == 2 and count > 1 and [*rows[0]] == [count - 1, count - 1]
        matrix = path.name.removesuffix(".gz").endswith((".mtx", ".metis", ".graph"))
        refuse(
            [
                (metis or matrix, f"{path}, in METIS or Matrix Market form", "one edge per line, no line of sizes"),
                (columns not in (2, 3), f"{path}: {columns} columns", "source, target, and a weight or none"),
                (not count and self.vertices is None, f"{path}: no edge, and no number of vertices", "one of both"),
            ]
        )
        ends = rows[:, :2] - self.first if count else np.zeros((0, 2))
        odd = np.flatnonzero(((ends != np.floor(ends)) | ~(np.abs(ends) < EXACT - 1)).any(axis=1))
        text = (next(islice(_lines(path), int(row), None)) for row in odd)
        refuse((True, f"{path}: edge {odd[0]} is {each!r}", "vertices are whole numbers below 2^53") for each in text)
        ids = ends.astype(np.int64)
        weights = rows[:, 2] if columns == 3 else None
        counted = int(ids.max(initial=-1)) + 1
        if self.compact:
            least = ids.min(initial=0)
            refuse([(least < 0, f"{path}: vertex {least + self.first}", f"numbered from {self.first}")])
            numbers, places = np.unique(ids, return_inverse=True)
            ids, counted = places.reshape(ids.shape), max(len(numbers), 1)
        return ids[:, 0], ids[:, 1], weights, counted if self.vertices is None else self.vertices


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[str]:
    """Lines that hold numbers, without comments."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            if text := re.split("[#%]", line, maxsplit=1)[0].strip():
                yield text


def _delimiter(path: Path) -> str | None:
    return "," if "," in next(_lines(path), "") else None


def _bounded(path: Path, vertices: int) -> Broken:
    return vertices > LARGEST, f"{path}: {vertices} vertices", f"at most {LARGEST}; compact=true leaves out gaps"
