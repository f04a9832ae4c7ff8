"""Refine a partition: move large clusters first, then small ones, then single vertices.

A vertex that moves alone leaves its neighbours behind, which costs more than it saves nearly everywhere in a partition
that METIS has made; a cluster of the right size takes them along. So a cycle clusters the vertices of each part,
contracts the clusters, does so again, and moves what is left from the coarsest level to the finest. Nothing is given up
on the way: volumes of a contracted level are exact, not estimates. Clusters never cross parts, so that the next cycle
starts from the parts of the one before, and finds other clusters in them.

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
from suite.gnn.partition.pattern import Rows

REFINE: Any = refine_numba.refine  # a compiled function, whose arguments numba checks
SHARES = (64, 16, 4)  # a cluster weighs at most this fraction of a mean part, level by level
SWEEPS = 2  # of label propagation: two more find no better parts in the end
SHRINK = 0.8  # a coarser level with more of the pins than this has no clusters to speak of
ROUNDS = 12  # over the vertices of a level: most levels are done after 4 to 8


@dataclass(frozen=True, eq=False)
class Level:
    """m vertices, or clusters of them, and the nets that join them; see kernel.py.

    Attributes:
        pins: (m, N) pattern, [x, j] where x reads net j and does not own it.
        owner: (N,) int32 ascending.
        rows: (N,) int64 rows of X in a net.
        weight: (m,) int64 entries of the matrix.
    """

    pins: csr_array
    owner: Rows
    rows: Rows
    weight: Rows

    @classmethod
    def finest(cls, pattern: csr_array, weight: Rows) -> Level:
        """Of a matrix without loops: row x reads the rows of X that its columns name."""
        n = pattern.shape[0]
        return cls(pattern, np.arange(n, dtype=np.int32), np.ones(n, np.int64), weight)

    @cached_property
    def owned(self) -> Rows:
        """(m + 1,) nets of vertex x are owned[x] up to owned[x + 1]."""
        return _pointer(np.bincount(self.owner, minlength=len(self.weight)))

    @cached_property
    def by_vertex(self) -> tuple[Rows, Rows]:
        return self.pins.indptr.astype(np.int64), self.pins.indices.astype(np.int32)

    @cached_property
    def by_net(self) -> tuple[Rows, Rows]:
        turned = csr_array(self.pins.T)
        return turned.indptr.astype(np.int64), turned.indices.astype(np.int32)

    @cached_property
    def graph(self) -> tuple[Rows, Rows, Rows]:
        """indptr, indices and strengths of an undirected graph: the rows that one end reads of the other."""
        m = len(self.weight)
        reads = csr_array((self.rows[self.pins.indices], self.owner[self.pins.indices], self.pins.indptr), shape=(m, m))
        both = csr_array(reads + reads.T)
        return both.indptr.astype(np.int64), both.indices.astype(np.int32), both.data.astype(np.int64)

    def clusters(self, parts: Rows, limit: int, seed: int) -> Rows:
        """(m,) cluster ids from 0, of vertices of one part that weigh `limit` at most together."""
        m = len(self.weight)
        label = np.arange(m, dtype=np.int32)
        scratch = self.weight.copy(), np.zeros(m, np.int64), np.empty(m, np.int32), label.copy()
        refine_numba.cluster(*self.graph, self.weight, parts, label, *scratch, limit, SWEEPS, _state(seed))
        there = np.zeros(m, np.bool_)
        there[label] = True
        return (np.cumsum(there, dtype=np.int32) - 1)[label]

    def contracted(self, cluster: Rows) -> Level:
        """Clusters as vertices. A net whose pins all moved in with its owner is gone for good."""
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

    def refined(self, parts: Rows, k: int, rule: MoveRule, *, penalty: int, seed: int) -> tuple[Rows, Rows]:
        """(m,) parts no worse than `parts` by the rule, and the (k,) rows that each part sends."""
        m, slots = len(self.weight), _pointer(np.minimum(np.diff(self.by_net[0]), k))
        counts = np.zeros(slots[-1], np.int32), np.zeros(slots[-1], np.int32), np.zeros(len(self.owner), np.int64)
        by_part = (np.zeros(k, np.int64) for _ in range(5))
        best, send = np.empty(m, np.int32), np.empty(k, np.int64)
        REFINE(
            *(self.owned, self.owner, self.rows, *self.by_vertex, *self.by_net, slots, *counts),
            *(self.weight, parts.astype(np.int32), *by_part, np.arange(m, dtype=np.int32), np.ones(m, np.uint8)),
            *(best, send, rule.cap, rule.ceiling, penalty, ROUNDS, rule.effort * (self.pins.nnz + m), _state(seed)),
        )
        return best, send


@dataclass(frozen=True)
class MoveRule:
    """Limits of a move.

    Attributes:
        cap: Entries of a part; a part with more is relieved.
        ceiling: Total rows sent; parts that send more are kept only for want of others.
        effort: Steps of work per pin and level, a bound that is the same on every machine.
    """

    cap: int
    ceiling: int
    effort: int


def cycle(finest: Level, parts: Rows, k: int, rule: MoveRule, *, penalty: int, seed: int) -> tuple[Rows, Rows]:
    """(m,) parts no worse than `parts`, and the rows that each sends. penalty: the additional price of a row whose
    part sends nearly the maximum
    """
    levels, clusters, assignments = [finest], [], [parts]
    mean = int(finest.weight.sum()) // k
    for number, share in enumerate(SHARES):
        cluster = levels[-1].clusters(assignments[-1], max(1, mean // share), seed + number)
        coarser = levels[-1].contracted(cluster)
        if coarser.pins.nnz > SHRINK * levels[-1].pins.nnz:
            break
        above = np.empty(len(coarser.weight), np.int32)
        above[cluster] = assignments[-1]
        levels.append(coarser)
        clusters.append(cluster)
        assignments.append(above)
    assignment = assignments[-1]
    for depth in reversed(range(len(levels))):
        assignment, send = levels[depth].refined(assignment, k, rule, penalty=penalty, seed=seed + len(SHARES) + depth)
        if depth:
            assignment = assignment[clusters[depth - 1]]
    return assignment, send


def _pointer(counts: Rows) -> Rows:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _state(seed: int) -> int:
    """A state of xorshift for each seed, not 0 and with bits everywhere (Fibonacci hashing)."""
    return (seed * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) % 2**62 | 1
