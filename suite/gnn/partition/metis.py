"""METIS partitioner: minimise the k-way edge cut, with edges and vertices balanced.

Source: Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, SIAM J. Sci.
Comput. 20 (1998). The paper compares with it (Table 2, Section 7.1.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from suite.config.base import Count
from suite.gnn.partition.pattern import IntArray, partition_linked
from suite.gnn.partition.protocol import Partitioner

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
