"""Multilevel refinement of a partition: move large clusters first, then small ones, then single vertices.

A single vertex that moves leaves its neighbours behind, which in a METIS partition nearly always costs more than it
saves. A cluster takes its neighbours along. A cycle therefore clusters the vertices of each part, contracts the
clusters, repeats this, and refines from the coarsest level to the finest. Volumes of a contracted level are exact.
Clusters never cross parts, so the next cycle starts from the refined parts and finds other clusters in them.

Cycles on a partition: Walshaw: Multilevel refinement for combinatorial optimisation problems, Annals of OR 131 (2004);
Sanders, Schulz: Engineering multilevel graph partitioning algorithms, ESA 2011. Gains of a bounded volume: Acer,
Selvitopi, Aykanat: Parallel Computing 59 (2016), whose partitioner this is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.gnn.partition import refine_numba
from suite.gnn.plan import IntArray

REFINE: Any = refine_numba.refine  # typed Any: numba checks its arguments
CLUSTERS_PER_PART = (64, 16, 4)  # a cluster weighs at most 1/64 of a mean part, then 1/16, then 1/4
SWEEPS = 2  # of label propagation; four find no better parts
SHRINK = 0.8  # a coarser level must have at most this share of the pins
ROUNDS = 12  # limit of sweeps per level; most levels converge in 4 to 8


@dataclass(frozen=True, eq=False)
class Level:
    """Hypergraph of m vertices, or clusters of vertices, and N nets; see refine_numba.py.

    Attributes:
        pins: (m, N) pattern: vertex x reads net j and does not own it.
        owner: (N,) int32, ascending: vertex that owns each net.
        rows: (N,) int64: rows of X in each net.
        weight: (m,) int64: matrix entries of each vertex.
    """

    pins: csr_array
    owner: IntArray
    rows: IntArray
    weight: IntArray

    @classmethod
    def finest(cls, pattern: csr_array, weight: IntArray) -> Level:
        """Level of a matrix pattern without diagonal: vertex x reads the rows of X in its nonzero columns."""
        n = pattern.shape[0]
        return cls(pattern, np.arange(n, dtype=np.int32), np.ones(n, np.int64), weight)

    @cached_property
    def owned(self) -> IntArray:
        """(m + 1,): vertex x owns nets owned[x] to owned[x + 1] - 1."""
        return _pointer(np.bincount(self.owner, minlength=len(self.weight)))

    @cached_property
    def by_vertex(self) -> tuple[IntArray, IntArray]:
        return self.pins.indptr.astype(np.int64), self.pins.indices.astype(np.int32)

    @cached_property
    def by_net(self) -> tuple[IntArray, IntArray]:
        transposed = csr_array(self.pins.T)
        return transposed.indptr.astype(np.int64), transposed.indices.astype(np.int32)

    @cached_property
    def graph(self) -> tuple[IntArray, IntArray, IntArray]:
        """indptr, indices and weights of an undirected graph; an edge weighs the rows its ends read from each other."""
        m = len(self.weight)
        reads = csr_array((self.rows[self.pins.indices], self.owner[self.pins.indices], self.pins.indptr), shape=(m, m))
        both = csr_array(reads + reads.T)
        return both.indptr.astype(np.int64), both.indices.astype(np.int32), both.data.astype(np.int64)

    def clusters(self, parts: IntArray, limit: int, seed: int) -> IntArray:
        """(m,) cluster ids from 0. A cluster lies in one part and weighs at most `limit`."""
        m = len(self.weight)
        label = np.arange(m, dtype=np.int32)
        scratch = self.weight.copy(), np.zeros(m, np.int64), np.empty(m, np.int32), label.copy()
        refine_numba.cluster(*self.graph, self.weight, parts, label, *scratch, limit, SWEEPS, _random_state(seed))
        in_use = np.zeros(m, np.bool_)
        in_use[label] = True
        return (np.cumsum(in_use, dtype=np.int32) - 1)[label]

    def contracted(self, cluster: IntArray) -> Level:
        """The level whose vertices are the clusters. Nets whose pins all lie in the owner's cluster are dropped."""
        m, count = len(self.weight), int(cluster.max()) + 1
        members = csr_array(
            (np.ones(m, np.int32), np.argsort(cluster, kind="stable"), _pointer(np.bincount(cluster))), shape=(count, m)
        )
        pins = csr_array(
            members @ csr_array((np.ones(self.pins.nnz, np.int32), *self.by_vertex[::-1]), self.pins.shape)
        )
        owner = cluster[self.owner]
        row = np.repeat(np.arange(count, dtype=np.int32), np.diff(pins.indptr))
        other = owner[pins.indices] != row
        row, net = row[other], pins.indices[other]
        unmatched = np.zeros(len(owner), np.bool_)
        unmatched[net] = True
        nets = np.flatnonzero(unmatched)
        nets = nets[np.argsort(owner[nets], kind="stable")]
        renamed = np.empty(len(owner), np.int32)
        renamed[nets] = np.arange(len(nets), dtype=np.int32)
        coarse = csr_array(
            (np.ones(len(net), np.int8), renamed[net], _pointer(np.bincount(row, minlength=count))),
            shape=(count, len(nets)),
        )
        weight = np.bincount(cluster, weights=self.weight, minlength=count).astype(np.int64)
        return Level(coarse, owner[nets], self.rows[nets], weight)

    def refined(self, parts: IntArray, k: int, rule: MoveRule, *, penalty: int, seed: int) -> tuple[IntArray, IntArray]:
        """(m,) parts, no worse than `parts` by the rule, and the (k,) rows that each part sends."""
        m, slots = len(self.weight), _pointer(np.minimum(np.diff(self.by_net[0]), k))
        counts = np.zeros(slots[-1], np.int32), np.zeros(slots[-1], np.int32), np.zeros(len(self.owner), np.int64)
        by_part = (np.zeros(k, np.int64) for _ in range(5))
        best, send = np.empty(m, np.int32), np.empty(k, np.int64)
        REFINE(
            *(self.owned, self.owner, self.rows, *self.by_vertex, *self.by_net, slots, *counts),
            *(self.weight, parts.astype(np.int32), *by_part, np.arange(m, dtype=np.int32), np.ones(m, np.uint8)),
            *(best, send, rule.cap, rule.ceiling, penalty, ROUNDS, rule.effort * (self.pins.nnz + m)),
            _random_state(seed),
        )
        return best, send


@dataclass(frozen=True)
class MoveRule:
    """Limits of the refinement.

    Attributes:
        cap: Matrix entries of a part; a part with more loses vertices.
        ceiling: Total rows sent; a partition above it is accepted only if none below is known.
        effort: Steps of work per pin and level, a bound that does not depend on the machine.
    """

    cap: int
    ceiling: int
    effort: int


def cycle(
    finest: Level, parts: IntArray, k: int, rule: MoveRule, *, penalty: int, seed: int
) -> tuple[IntArray, IntArray]:
    """One refinement cycle: (m,) parts, no worse than `parts`, and the (k,) rows that each sends.

    `penalty` is the additional price of a row of a part whose send volume is near the maximum.
    """
    levels, clusters, assignments = [finest], [], [parts]
    mean = int(finest.weight.sum()) // k
    for number, per_part in enumerate(CLUSTERS_PER_PART):
        cluster = levels[-1].clusters(assignments[-1], max(1, mean // per_part), seed + number)
        coarser = levels[-1].contracted(cluster)
        if coarser.pins.nnz > SHRINK * levels[-1].pins.nnz:
            break
        coarse_assignment = np.empty(len(coarser.weight), np.int32)
        coarse_assignment[cluster] = assignments[-1]
        levels.append(coarser)
        clusters.append(cluster)
        assignments.append(coarse_assignment)
    assignment = assignments[-1]
    for depth in reversed(range(len(levels))):
        level_seed = seed + len(CLUSTERS_PER_PART) + depth
        assignment, send = levels[depth].refined(assignment, k, rule, penalty=penalty, seed=level_seed)
        if depth:
            assignment = assignment[clusters[depth - 1]]
    return assignment, send


def _pointer(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _random_state(seed: int) -> int:
    """Nonzero state of xorshift for a seed, by Fibonacci hashing."""
    return (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) % 2**62 | 1
