"""Graph: a checked sparse adjacency with features, labels and splits, and its normalized operator.

`Graph.of` makes every graph, or the same checks apply: sorted, without duplicates, with finite weights. The hash then
depends on the graph only, so a cached partition or volume can be found again.
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

from suite.core.errors import InvalidRequest

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
        _check_matrix(self.name, self.adjacency)
        n = self.vertices
        if self.features is not None:
            _check_features(self.name, self.features, n)
        _check_labels(self.name, self.labels, self.classes, n)
        for part in ("train", "validation", "test"):
            mask = np.asarray(getattr(self, part))
            mask = np.zeros(n, np.bool_) if mask.shape == (0,) else mask
            if mask.shape != (n,) or mask.dtype != np.bool_:
                raise InvalidRequest(
                    f"{self.name}: {part} is {mask.dtype} {mask.shape}", rule=f"bool ({n},), one per vertex"
                )
            object.__setattr__(self, part, mask)
        strange = [name for name in self.random if name not in RANDOM]
        if strange:
            raise InvalidRequest(
                f"{self.name}: random={self.random}", rule=f"of {', '.join(RANDOM)}", legal="features, labels"
            )

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

        Raises InvalidRequest for the first id out of range or weight that is not finite.
        """
        u, v = _ids(name, "source", sources, vertices), _ids(name, "target", targets, vertices)
        if len(u) != len(v):
            raise InvalidRequest(f"{name}: {len(u)} sources and {len(v)} targets", rule="one of each per edge")
        if merge and weights is not None:
            raise InvalidRequest(
                f"{name}: weights of edges that are merged", rule="all are 1 then", legal="weights=None"
            )
        w = _weights(name, weights, len(u))
        said = list(notes)
        if symmetrise:
            ahead = u != v
            u, v, w = (np.concatenate(pair) for pair in ((u, v[ahead]), (v, u[ahead]), (w, w[ahead])))
            said.append(f"{int(ahead.sum())} reverse edges added")
        if loops:
            bare = np.ones(vertices, np.bool_)
            bare[u[u == v]] = False
            isolated = np.flatnonzero(bare).astype(u.dtype)
            u, v = np.concatenate((u, isolated)), np.concatenate((v, isolated))
            w = np.concatenate((w, np.ones(len(isolated), w.dtype)))
            said.append(f"{len(isolated)} self loops added")
        matrix = sparse.coo_array((w, (u, v)), shape=(vertices, vertices)).tocsr()
        matrix.sum_duplicates()
        if matrix.nnz < len(w):
            said.append(f"{len(w) - matrix.nnz} duplicate edges {'merged' if merge else 'added up'}")
            if symmetrise and weights is not None:  # one order of adding for an edge and its reverse
                upper = sparse.triu(matrix, format="csr")
                matrix = (upper + sparse.triu(upper, k=1).T).tocsr()
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
    def degree(self) -> float:
        """Mean number of entries per vertex."""
        return self.edges / self.vertices

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


def operator(graph: Graph, *, loops: bool = True) -> sparse.csr_array:
    """Propagation matrix of a GCN, D_out^-1/2 (A + I) D_in^-1/2: [n, n] float64, [u, v] as in the adjacency.

    D_out and D_in are the row and column sums of A + I. A symmetric A gives a symmetric operator bit for bit. A vertex
    with a self loop gets no second one, so a published graph with loops (Reddit) gives the published matrix. An
    isolated vertex keeps its loop only; with loops=False its row and column are empty. Source: sparse_gnn, Section
    2.1; Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks, Equation 2.

    Raises InvalidRequest, with vertex and number, if the weights of a vertex do not sum to a positive number, or if an
    entry of the operator is not finite.
    """
    matrix = graph.adjacency.astype(np.float64)
    if loops:
        bare = np.ones(graph.vertices)
        rows = np.repeat(np.arange(graph.vertices), np.diff(matrix.indptr))
        bare[rows[rows == matrix.indices]] = 0.0
        matrix = (matrix + sparse.dia_array((bare[None, :], [0]), shape=matrix.shape)).tocsr()
        matrix.eliminate_zeros()  # the diagonal's own, where a loop was there
        matrix.sort_indices()
    rows = np.repeat(np.arange(graph.vertices), np.diff(matrix.indptr))
    scales = []
    for ends, side in ((rows, "out"), (matrix.indices, "in")):
        # added in the order of the entries: rows by column, columns by row
        degrees = np.bincount(ends, weights=matrix.data, minlength=graph.vertices)
        weighed = np.bincount(ends[matrix.data != 0], minlength=graph.vertices) > 0
        bad = np.flatnonzero(~np.isfinite(degrees) | (weighed & (degrees <= 0)))
        if len(bad):
            what = f"{graph.name}: {side}-degree {degrees[bad[0]]:g} of vertex {bad[0]}"
            raise InvalidRequest(
                what, rule="weights of a vertex sum to a finite number above 0", legal="positive weights"
            )
        with np.errstate(divide="ignore"):
            scales.append(np.where(weighed, 1.0 / np.sqrt(degrees), 0.0))
    # the two scales first: their product does not know which of them is the row's
    with np.errstate(over="ignore", invalid="ignore"):
        matrix.data *= scales[0][rows] * scales[1][matrix.indices]
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if len(bad):
        what = f"{graph.name}: operator {matrix.data[bad[0]]:g} of edge {rows[bad[0]]} -> {matrix.indices[bad[0]]}"
        raise InvalidRequest(what, rule="weights whose degrees have a finite product of roots", legal="weights near 1")
    return matrix


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), HASHED):
        yield array[start : start + HASHED]


def _ids(name: str, side: str, given: ArrayLike, vertices: int) -> NDArray[Any]:
    """Vertex numbers as the smallest sufficient integer type, so that a matrix of them needs no copy."""
    if vertices < 1:
        raise InvalidRequest(f"{name}: {vertices} vertices", rule="at least 1", legal="1")
    ids = np.asarray(given)
    if ids.ndim != 1:
        raise InvalidRequest(f"{name}: the {side}s have {ids.ndim} dimensions", rule="one, of vertex numbers")
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise InvalidRequest(f"{name}: {side}s are {ids.dtype}", rule="vertex numbers are integers", legal="int64")
    bad = np.flatnonzero((ids < 0) | (ids >= vertices)) if ids.size else ids
    if len(bad):
        what = f"{name}: {side} {ids[bad[0]]} of edge {bad[0]}, and {len(bad) - 1} more, in a graph of {vertices}"
        raise InvalidRequest(what, rule=f"vertices are 0 to {vertices - 1}", legal=str(vertices - 1))
    return ids.astype(np.int32 if vertices <= np.iinfo(np.int32).max else np.int64, copy=False)


def _weights(name: str, given: ArrayLike | None, edges: int) -> NDArray[Any]:
    if given is None:
        return np.ones(edges, np.float32)
    w = np.asarray(given)
    if w.shape != (edges,):
        raise InvalidRequest(
            f"{name}: weights of shape {w.shape} for {edges} edges", rule="one per edge", legal=f"({edges},)"
        )
    if w.dtype.kind not in "biuf":
        raise InvalidRequest(f"{name}: weights are {w.dtype}", rule="real numbers", legal="float64")
    w = w if w.dtype == np.float32 else w.astype(np.float64)
    _finite(name, "weight", w)
    return w


def _finite(name: str, what: str, values: NDArray[Any]) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        message = f"{name}: {what} {values.flat[bad[0]]} at {bad[0]}, and {len(bad) - 1} more of {values.size}"
        raise InvalidRequest(message, rule="finite numbers", legal="1.0")


def _check_matrix(name: str, matrix: sparse.csr_array) -> None:
    if not isinstance(matrix, sparse.csr_array):
        raise InvalidRequest(
            f"{name}: the adjacency is a {type(matrix).__name__}", rule="a csr_array", legal="Graph.of"
        )
    if matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 1:
        raise InvalidRequest(
            f"{name}: an adjacency of {matrix.shape}", rule="square, of a vertex or more", legal="(1, 1)"
        )
    if matrix.dtype not in (np.float32, np.float64):
        raise InvalidRequest(f"{name}: an adjacency of {matrix.dtype}", rule="float32 or float64", legal="float32")
    fresh = sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)  # no flag to believe
    if not fresh.has_canonical_format:
        raise InvalidRequest(f"{name}: indices are unsorted or come twice", rule="sorted, each once", legal="Graph.of")
    _finite(name, "weight", matrix.data)


def _check_features(name: str, features: NDArray[Any], n: int) -> None:
    if features.dtype != np.float32 or features.ndim != 2 or len(features) != n:
        shape = f"{features.dtype} {features.shape}"
        raise InvalidRequest(f"{name}: features are {shape}", rule=f"float32 ({n}, f), a row per vertex")
    for start in range(0, n, 1 << 14):
        if not np.isfinite(features[start : start + (1 << 14)]).all():
            _finite(name, "feature", features)


def _check_labels(name: str, labels: NDArray[Any] | None, classes: int, n: int) -> None:
    if labels is None:
        if classes:
            raise InvalidRequest(f"{name}: {classes} classes without labels", rule="0 classes", legal="classes=0")
        return
    if labels.dtype != np.int64 or labels.shape != (n,):
        raise InvalidRequest(f"{name}: labels are {labels.dtype} {labels.shape}", rule=f"int64 ({n},), one per vertex")
    low, high = int(labels.min()), int(labels.max())
    if low < -1 or high >= classes or classes < 1:
        raise InvalidRequest(
            f"{name}: labels from {low} to {high} of {classes} classes", rule=f"-1 for none, and below {classes}"
        )
