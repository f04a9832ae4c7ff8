"""Graph: a checked sparse adjacency with features, labels and splits, and its normalized operator.

`Graph.of` makes every graph: sorted, without duplicates, with finite weights. The hash depends on the graph only, so a
cached partition or volume can be found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from suite.core.errors import Broken, InvalidRequest, refuse

HASHED = 1 << 22  # entries that are widened and hashed at a time: 32 MiB
RANDOM = ("features", "labels")
Bools = NDArray[np.bool_]


def _none() -> Bools:
    return np.zeros(0, np.bool_)


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph of n vertices. Vertices are 0 .. n - 1.

    Attributes:
        adjacency: [n, n], float32 or float64; entry [u, v] is the weight of the edge u -> v.
        features: [n, f] float32, or None.
        labels: [n] int64 below `classes`, -1 for a vertex without; or None, and then classes is 0.
        train, validation, test: [n] bool; left out, no vertex is in that part.
        random: Which of "features" and "labels" are synthetic: every record contains it.
        notes: Changes at loading, with their numbers.
    """

    name: str
    adjacency: sparse.csr_array
    features: NDArray[np.float32] | None = None
    labels: NDArray[np.int64] | None = None
    classes: int = 0
    train: Bools = field(default_factory=_none)
    validation: Bools = field(default_factory=_none)
    test: Bools = field(default_factory=_none)
    random: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            mask = np.asarray(getattr(self, part))
            object.__setattr__(self, part, np.zeros(self.vertices, np.bool_) if mask.shape == (0,) else mask)
        refuse((broken, f"{self.name}: {what}", *rest) for broken, what, *rest in self._rules())

    def _rules(self) -> Iterator[Broken]:
        matrix, features, labels, classes = self.adjacency, self.features, self.labels, self.classes
        n = matrix.shape[0]
        yield matrix.shape != (n, n) or n < 1, f"an adjacency of {matrix.shape}", "square, of a vertex or more"
        yield _not_finite("weight", matrix.data)
        if features is not None:
            wrong = features.dtype != np.float32 or features.ndim != 2 or len(features) != n
            yield wrong, f"features are {features.dtype} {features.shape}", f"float32 ({n}, f), a row per vertex"
            for piece in _pieces(features, 1 << 14):
                yield _not_finite("feature", piece)
        if labels is None:
            yield classes, f"{classes} classes without labels", "labels, or 0 classes"
        else:
            wrong = labels.dtype != np.int64 or labels.shape != (n,)
            yield wrong, f"labels are {labels.dtype} {labels.shape}", f"int64 ({n},), one per vertex"
            low, high = int(labels.min()), int(labels.max())
            wrong = low < -1 or high >= classes or classes < 1
            yield wrong, f"labels from {low} to {high} of {classes} classes", "-1 for none, and below the classes"

    @classmethod
    def of(
        cls,
        name: str,
        sources: ArrayLike,
        targets: ArrayLike,
        vertices: int,
        weights: ArrayLike | None = None,
        *,
        symmetrise: bool = False,
        loops: bool = False,
        merge: bool = False,
        notes: tuple[str, ...] = (),
        **rest: Any,
    ) -> Graph:
        """Graph of an edge list with weights, by default 1. `rest` holds features, labels and so on.

        Weights of duplicate edges are added, and edges of weight 0 are dropped; the notes count both.

        Args:
            symmetrise: Whether to add the reverse of every edge that is not a self loop. If the reverse is there
                already, the weights are added.
            loops: Whether every vertex without a self loop gets one of weight 1.
            merge: Whether duplicate edges are one edge of weight 1; `weights` must be None.

        Raises InvalidRequest for an id out of range or a weight that is not finite.
        """
        u, v = np.asarray(sources), np.asarray(targets)
        w = np.ones(u.shape, np.float32) if weights is None else np.asarray(weights)
        whole = all(not ids.size or np.issubdtype(ids.dtype, np.integer) for ids in (u, v))
        refuse(
            [
                (not whole, f"{name}: vertex numbers are {u.dtype} and {v.dtype}", "integers"),
                (w.dtype.kind not in "biuf", f"{name}: weights are {w.dtype}", "real numbers"),
            ]
        )
        w = w if w.dtype == np.float32 else w.astype(np.float64)
        try:
            edges = sparse.coo_array((w, (u, v)), shape=(vertices, vertices))
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(f"{name}: {error}", rule=f"an edge joins vertices 0 to {vertices - 1}") from error
        index = np.int32 if vertices <= np.iinfo(np.int32).max else np.int64
        edges.coords = tuple(ids.astype(index, copy=False) for ids in edges.coords)
        matrix = edges.tocsr()
        matrix.sum_duplicates()
        said, entries = list(notes), len(w)
        if symmetrise:
            reverse = int((u != v).sum())
            # an edge and its reverse have one sum, bit for bit
            matrix = (matrix + matrix.T - sparse.diags_array(matrix.diagonal())).tocsr()
            said, entries = [*said, f"{reverse} reverse edges added"], entries + reverse
        if loops:
            added = int((matrix.diagonal() == 0).sum())
            matrix = _with_loops(matrix)
            said, entries = [*said, f"{added} self loops added"], entries + added
        if matrix.nnz < entries:
            said.append(f"{entries - matrix.nnz} duplicate edges {'merged' if merge else 'added up'}")
        if merge:
            matrix.data[:] = 1
        zeros = int((matrix.data == 0).sum())
        if zeros:
            matrix.eliminate_zeros()
            said.append(f"{zeros} edges of weight 0 left out")
        return cls(name, matrix, notes=tuple(said), **rest)

    @property
    def vertices(self) -> int:
        return int(self.adjacency.shape[0])

    @property
    def edges(self) -> int:
        """Entries of the adjacency: an edge of a symmetric graph counts in both directions."""
        return int(self.adjacency.nnz)

    @property
    def masks(self) -> dict[str, Bools]:
        """The parts by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge has a reverse of the same weight."""
        return bool((self.adjacency != self.adjacency.T).nnz == 0)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the adjacency in hexadecimal; index and value types do not matter."""
        digest = hashlib.sha256()
        matrix = self.adjacency
        for array, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f8")):
            for piece in _pieces(array):
                digest.update(piece.astype(kind).data)
        return digest.hexdigest()


def operator(graph: Graph) -> sparse.csr_array:
    """Propagation matrix of a GCN, D_out^-1/2 (A + I) D_in^-1/2: [n, n] float64, [u, v] as in the adjacency.

    D_out and D_in are the row and column sums of A + I. A symmetric A gives a symmetric operator bit for bit. A vertex
    with a self loop gets no second one, so a published graph with loops (Reddit) gives the published matrix. An
    isolated vertex keeps its loop only. Source: sparse_gnn, Section
    2.1; Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, Equation 2.

    Raises InvalidRequest, with vertex and number, if the weights of a vertex do not sum to a positive number, or if an
    entry of the operator is not finite.
    """
    matrix = _with_loops(graph.adjacency.astype(np.float64))
    matrix.sort_indices()
    rows = np.repeat(np.arange(graph.vertices), np.diff(matrix.indptr))
    scales = []
    for ends, side in ((rows, "out"), (matrix.indices, "in")):
        # added in the order of the entries: rows by column, columns by row
        degrees = np.bincount(ends, weights=matrix.data, minlength=graph.vertices)
        bad = np.flatnonzero(~np.isfinite(degrees) | (degrees <= 0))
        what = (f"{graph.name}: {side}-degree {degrees[vertex]:g} of vertex {vertex}" for vertex in bad)
        refuse((True, each, "weights of a vertex sum to a finite number above 0") for each in what)
        scales.append(1.0 / np.sqrt(degrees))
    # the two scales first: their product does not know which of them is the row's
    with np.errstate(over="ignore", invalid="ignore"):
        matrix.data *= scales[0][rows] * scales[1][matrix.indices]
    refuse(
        (True, f"{graph.name}: operator {matrix.data[bad]:g} of edge {rows[bad]} -> {matrix.indices[bad]}", "finite")
        for bad in np.flatnonzero(~np.isfinite(matrix.data))
    )
    return matrix


def _with_loops(matrix: sparse.csr_array) -> sparse.csr_array:
    """The matrix with a self loop of weight 1 at every vertex that has none."""
    bare = (matrix.diagonal() == 0).astype(matrix.dtype)
    return (matrix + sparse.diags_array(bare)).tocsr()


def _pieces(array: NDArray[Any], size: int = HASHED) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), size):
        yield array[start : start + size]


def _not_finite(what: str, values: NDArray[Any]) -> Broken:
    bad = values[~np.isfinite(values)]
    return len(bad), f"{what} {bad[0] if len(bad) else ''}, and {len(bad) - 1} more of {values.size}", "finite numbers"
