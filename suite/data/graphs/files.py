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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse

from suite.core.errors import InvalidRequest
from suite.data.graphs.graph import Graph
from suite.data.graphs.synthetic_attributes import CLASSES, FEATURES, TRAIN, VALIDATION, draw_attributes
from suite.data.reading import DAMAGED, PIECE, REAL, WHOLE, archive, existing, file_provenance, table

Edges = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, int]  # sources, targets, weights, vertices
LARGEST = 2**31 - 1  # vertices: scipy's indices are int32 up to here, and so are part ids
EXACT = 2**53  # from here on float64, as which a text is read, does not hold every whole number


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Common settings of all files.

    Attributes:
        file: Path of the file.
        symmetrise: Whether to add the reverse of every edge. If the reverse is there already, the weights are added.
        weighted: Whether weights of the file count; False gives every edge the weight 1.
        features, classes: Width and number of the random features and labels; 0 for none.
        train, validation: Shares of the vertices; the rest is test.
    """

    file: str | os.PathLike[str]
    symmetrise: bool = False
    weighted: bool = True
    features: int = FEATURES
    classes: int = CLASSES
    train: float = TRAIN
    validation: float = VALIDATION

    def __post_init__(self) -> None:
        for field, value in (("features", self.features), ("classes", self.classes)):
            _whole(field, value, range(LARGEST))
        for field, share in (("train", self.train), ("validation", self.validation)):
            if isinstance(share, bool) or not isinstance(share, int | float):
                raise InvalidRequest(f"{field}={share!r}", rule="a share of the vertices", legal=f"{field}=0.2")

    @property
    def name(self) -> str:
        """Name of the file without its suffix."""
        return Path(self.file).name.partition(".")[0]

    def load(self, seed: int) -> Graph:
        """The graph, with features and labels of `seed`."""
        path = existing(self.name, self.file)
        u, v, weights, n = self._read(path)
        _bounded(path, n)
        counts = {"features": self.features, "classes": self.classes}
        attributes = draw_attributes(n, **counts, train=self.train, validation=self.validation, seed=seed)
        edge_weights, merge = (weights, False) if self.weighted else (None, True)
        return Graph.of(self.name, u, v, n, edge_weights, symmetrise=self.symmetrise, merge=merge, **attributes)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256 of the file."""
        return file_provenance(self.name, [existing(self.name, self.file)])

    def _read(self, path: Path) -> Edges:
        raise NotImplementedError


class MatrixMarket(FromFile):
    """A sparse matrix in Matrix Market format, .mtx or .mtx.gz: real, integer or pattern, general or symmetric.

    A symmetric file gives both triangles. The weights of a pattern are 1.
    """

    def _read(self, path: Path) -> Edges:
        try:
            ended = _ended(path)
            rows, columns, _entries, form, kind, _symmetry = io.mminfo(path)
            if form != "coordinate" or kind not in ("real", "integer", "unsigned-integer", "pattern"):
                raise InvalidRequest(
                    f"{path}: {form} of {kind}", rule="coordinates of numbers", legal="coordinate real"
                )
            _bounded(path, max(rows, columns))
            matrix = sparse.coo_array(io.mmread(ended)) if rows == columns else None
        except DAMAGED as error:
            raise InvalidRequest(
                f"{path}: {error}", rule="the Matrix Market format", legal="%%MatrixMarket ..."
            ) from error
        if matrix is None:
            raise InvalidRequest(f"{path}: {rows} x {columns}", rule="a square matrix", legal=f"{rows} x {rows}")
        weights = None if kind == "pattern" else matrix.data
        return matrix.coords[0], matrix.coords[1], weights, rows


class Npz(FromFile):
    """A matrix as scipy.sparse.save_npz writes it, in csr, csc or coo form."""

    def _read(self, path: Path) -> Edges:
        said = archive(path, {"format": ("SU", (0,))})["format"].item()
        form = said.decode("ascii", "replace") if isinstance(said, bytes) else said
        if form not in ("csr", "csc", "coo"):
            raise InvalidRequest(f"{path}: a matrix in {form} form", rule="csr, csc or coo", legal="csr")
        ends = ("row", "col") if form == "coo" else ("indices", "indptr")
        arrays = archive(path, {"shape": WHOLE, "data": REAL, ends[0]: WHOLE, ends[1]: WHOLE})
        shape = tuple(arrays["shape"].tolist())
        if len(shape) != 2 or shape[0] != shape[1]:
            raise InvalidRequest(f"{path}: a matrix of {shape}", rule="square", legal="one row per vertex")
        _bounded(path, shape[0])
        data, first, second = arrays["data"], arrays[ends[0]], arrays[ends[1]]
        try:
            if form == "coo":
                matrix = sparse.coo_array((data, (first, second)), shape=shape)
            else:
                kind = sparse.csr_array if form == "csr" else sparse.csc_array
                packed = kind((data, first, second), shape=shape)
                packed.check_format(full_check=True)  # before its indices are followed
                matrix = sparse.coo_array(packed)
        except DAMAGED as error:
            raise InvalidRequest(f"{path}: {error}", rule="what scipy.sparse.save_npz writes", legal="csr") from error
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

    vertices: int | None = None
    first: int = 0
    compact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("first", self.first, range(2))
        if self.vertices is not None:
            _whole("vertices", self.vertices, range(1, LARGEST + 1))

    def _read(self, path: Path) -> Edges:
        rows = table(path, np.float64, delimiter=_delimiter(path))
        vertices, columns = len(rows) - 1, rows.shape[1] if rows.size else 0
        metis = columns == 2 and vertices > 0 and [*rows[0]] == [vertices, vertices * columns / 2]
        if metis or path.name.removesuffix(".gz").endswith((".mtx", ".metis", ".graph")):
            raise InvalidRequest(
                f"{path}, a file of {'METIS' if metis or 'mtx' not in path.name else 'Matrix Market'}",
                rule="one edge per line, without a line of sizes",
                legal="graph=matrix_market for .mtx, or a list of edges",
            )
        if rows.size and rows.shape[1] not in (2, 3):
            raise InvalidRequest(
                f"{path}: {rows.shape[1]} columns", rule="source, target, and a weight or none", legal="0 1"
            )
        if not len(rows) and self.vertices is None:
            raise InvalidRequest(f"{path}: no edge, and no number of vertices", rule="one of both", legal="vertices=1")
        ends = rows[:, :2] - self.first if rows.size else np.zeros((0, 2))
        odd = np.flatnonzero(((ends != np.floor(ends)) | ~(np.abs(ends) < EXACT - 1)).any(axis=1))
        if len(odd):
            text = next(islice(_lines(path), int(odd[0]), None))
            raise InvalidRequest(
                f"{path}: edge {odd[0]} is {text!r}", rule="vertices are whole numbers below 2^53", legal="0 1"
            )
        ids = ends.astype(np.int64)
        weights = rows[:, 2] if rows.size and rows.shape[1] == 3 else None
        if self.compact:
            if len(ids) and ids.min() < 0:
                raise InvalidRequest(
                    f"{path}: vertex {ids.min() + self.first}", rule=f"numbered from {self.first}", legal="0"
                )
            numbers, places = np.unique(ids, return_inverse=True)
            ids, counted = places.reshape(ids.shape), max(len(numbers), 1)
        else:
            counted = int(ids.max(initial=-1)) + 1
        n = counted if self.vertices is None else self.vertices
        return ids[:, 0], ids[:, 1], weights, n


def _ended(path: Path) -> Path | BytesIO:
    """The file, or its content with a final line end.

    Without a line end, scipy's reader (1.17.1) ends the process if anything follows the last number, even a blank. A
    .gz is read to its checksum.
    """
    with _opened(path) as file:
        last = b""
        while piece := file.read(PIECE):
            last = piece[-1:]
    if last == b"\n":
        return path
    with _opened(path) as file:
        return BytesIO(file.read() + b"\n")


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[str]:
    """Lines that hold numbers, without comments."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in file:
                if text := re.split("[#%]", line, maxsplit=1)[0].strip():
                    yield text
    except DAMAGED as error:  # a text that cannot be decoded is a ValueError
        raise InvalidRequest(f"{path}: {error}", rule="a text of edges", legal="0 1") from error


def _delimiter(path: Path) -> str | None:
    return "," if "," in next(_lines(path), "") else None


def _bounded(path: Path, vertices: int) -> None:
    if vertices > LARGEST:
        raise InvalidRequest(f"{path}: {vertices} vertices", rule=f"at most {LARGEST}", legal="compact=true for gaps")


def _whole(field: str, value: object, legal: range) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value not in legal:
        rule = f"a whole number from {legal[0]} to {legal[-1]}"
        raise InvalidRequest(f"{field}={value!r}", rule=rule, legal=f"{field}={legal[0]}")
