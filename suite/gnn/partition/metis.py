"""METIS partitioner: minimise the k-way edge cut, with edges and vertices balanced.

Source: Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci.
Comput. 20 (1998). The paper compares with it (Table 2, Section 7.1.1).

A partitioner gets the symmetric pattern of a matrix, without self loops and isolated vertices. A self loop moves no
row, and an isolated vertex may be in any part. A partitioner would use isolated vertices only to balance weights, and
puts many times their mean number into one part of an R-MAT graph. They are removed first and assigned last, so that
they even out the numbers of vertices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from suite.config.base import Count
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import IntArray

# vertices per part: on sparse random graphs (k = 2 to 40) METIS left parts empty with 3 or fewer, never with 4 or more
MIN_VERTICES = 4


@dataclass(frozen=True)
class Metis(Partitioner):
    """Multilevel k-way METIS. A vertex weighs its degree + 1: degrees balance the work, vertices the memory.

    `ufactor` is the share by which the heaviest part may exceed the mean, in thousandths; 30 is METIS' k-way default.
    """

    ufactor: Count = 30
    name: str = "metis"
    packages = ("pymetis",)

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32. A directed matrix is partitioned as the undirected graph of A + A^T."""

        def solve(pattern: csr_array, linked: IntArray) -> IntArray:
            return kway(pattern, k, seed, ufactor=self.ufactor)

        return partition_linked(matrix, k, solve, imbalance=self.ufactor / 1000)


def kway(pattern: csr_array, k: int, seed: int, *, ufactor: int = 30) -> IntArray:
    """(n,) part ids of an undirected pattern without self loops.

    With fewer than two vertices per part METIS prints an error and leaves parts empty, so vertices are distributed
    round-robin instead. The same happens if METIS leaves a part empty with fewer than MIN_VERTICES per part.
    """
    import pymetis

    weight = np.diff(pattern.indptr).astype(np.int64) + 1
    if len(weight) < 2 * k:
        return round_robin(weight, k)
    options = pymetis.Options(seed=seed % 2**31, ufactor=ufactor)
    graph = pymetis.CSRAdjacency(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int64))
    assignment = np.asarray(pymetis.part_graph(k, graph, vweights=weight, options=options, recursive=False).vertex_part)
    empty = bool((np.bincount(assignment, minlength=k) == 0).any())
    return round_robin(weight, k) if empty and len(weight) < MIN_VERTICES * k else assignment


def round_robin(weight: IntArray, k: int) -> IntArray:
    """(n,) part ids, heaviest vertex first, in boustrophedon order; part sizes differ by at most one vertex."""
    index = np.arange(len(weight))
    part = index % k
    parts = np.empty(len(weight), np.int64)
    parts[np.argsort(-weight, kind="stable")] = np.where(index // k % 2, k - 1 - part, part)
    return parts


def directed_pattern(matrix: csr_array) -> csr_array:
    """The pattern of the off-diagonal entries: int8 ones with sorted int32 indices, duplicates merged."""
    n = matrix.shape[0]
    rows = np.repeat(np.arange(n), np.diff(matrix.indptr))
    off = rows != matrix.indices
    counts = np.bincount(rows[off], minlength=n)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    pattern = csr_array((np.ones(off.sum(), np.int8), matrix.indices[off].astype(np.int32), indptr), shape=(n, n))
    if not pattern.has_canonical_format:
        pattern.sum_duplicates()
        pattern.data[:] = 1
    return pattern


def undirected_pattern(matrix: csr_array) -> csr_array:
    """The off-diagonal pattern of A + A^T, in the form of `directed_pattern`."""
    pattern = directed_pattern(matrix)
    symmetric = csr_array(pattern + pattern.T)
    symmetric.sort_indices()
    symmetric.data[:] = 1
    return symmetric


def entries_per_row(matrix: csr_array) -> IntArray:
    """(n,) stored entries of each row, diagonal included: the work of a vertex."""
    return np.diff(matrix.indptr).astype(np.int64)


def partition_linked(
    matrix: csr_array, k: int, solve: Callable[[csr_array, IntArray], IntArray], *, imbalance: float = 0.0
) -> IntArray:
    """(n,) int32 parts: `solve` partitions the vertices with edges, `assign_isolated` distributes the others.

    Args:
        matrix: (n, n) adjacency.
        k: Number of parts.
        solve: Maps the undirected pattern (m, m) of the m vertices with edges, and their ascending numbers (m,), to
            part ids (m,). Not called for one part, nor for no more vertices than parts.
        imbalance: Share by which the entries of a part may exceed the mean.
    """
    pattern = undirected_pattern(matrix)
    n = pattern.shape[0]
    linked = np.flatnonzero(np.diff(pattern.indptr))
    parts = np.full(n, -1, np.int32)
    if k == 1:
        parts[:] = 0
    elif len(linked) <= k:
        parts[linked] = np.arange(len(linked))
    else:
        parts[linked] = solve(csr_array(pattern[linked][:, linked]) if len(linked) < n else pattern, linked)
    return assign_isolated(parts, entries_per_row(matrix), k, imbalance=imbalance)


def assign_isolated(parts: IntArray, weight: IntArray, k: int, *, imbalance: float) -> IntArray:
    """Replace every -1 in `parts` so that the smallest parts are filled up to one level.

    Vertices with entries (self loops) are assigned first. No part takes them beyond the entries of the fullest part or
    beyond `imbalance` above the mean, whichever is larger, unless all parts are at that limit.

    Args:
        parts: (n,) part ids; -1 where a vertex has none yet.
        weight: (n,) entries of each vertex.
        k: Number of parts.
        imbalance: Share by which the entries of a part may exceed the mean.
    """
    parts = parts.copy()
    load = np.bincount(parts[parts >= 0], weights=weight[parts >= 0], minlength=k).astype(np.int64)
    limit = max(int(load.max(initial=0)), int((1 + imbalance) * weight.sum() / k))
    for isolated in (np.flatnonzero((parts < 0) & (weight > 0)), np.flatnonzero((parts < 0) & (weight == 0))):
        number = len(isolated)
        if number:
            count = np.bincount(parts[parts >= 0], minlength=k)
            largest = int(weight[isolated].max())
            space = np.maximum(limit - load, 0) // largest if largest else number
            shares = _fill_evenly(count, np.broadcast_to(space, k), number)
            shares += _fill_evenly(count + shares, np.full(k, number), number - int(shares.sum()))
            parts[isolated] = np.repeat(np.arange(k, dtype=np.int32), shares)
    return parts


def _fill_evenly(count: IntArray, space: IntArray, number: int) -> IntArray:
    """(k,) shares of `number`, each at most `space`, that maximise the minimum of count + share."""
    low, high = int(count.min()), int(count.max()) + number
    while low < high:  # bisect for the highest level that takes no more than `number`
        middle = (low + high + 1) // 2
        if int(np.minimum(np.maximum(middle - count, 0), space).sum()) <= number:
            low = middle
        else:
            high = middle - 1
    shares = np.minimum(np.maximum(low - count, 0), space)
    over = np.flatnonzero((count + shares <= low) & (shares < space))[: number - int(shares.sum())]
    shares[over] += 1
    return shares
