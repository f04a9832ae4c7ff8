"""Exchange plan: the rows of X that each process needs for a sparse product A X.

Vertices are renumbered part by part, and the processes of a block row hold that part's rows of A and X. The pattern of
A never changes in training, so one plan serves all epochs; every communication volume follows from it. Process i
receives from q the rows that the nonzero columns of block (i, q) name. The paper's Algorithms 1 and 2 print these two
indices swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import refuse

IntArray = Any  # numpy array of int64


@dataclass(frozen=True)
class Placement:
    """A grid of `parts` x `replication` processes (Section 4.2). Replication 1 is the 1D algorithm.

    Process (i, j) has rank i * replication + j and holds block row i.

    Attributes:
        assignment: Grid column that multiplies block (i, q). "paper": contiguous runs of parts // replication block
            columns, the remainder on the last grid column; one replica then sends all rows of its part.
            "interleaved": (q + i) mod replication, which spreads the sends of a part over its replicas.
    """

    parts: int
    replication: int = 1
    assignment: str = "paper"

    @classmethod
    def of(cls, processes: int, replication: int = 1, assignment: str = "paper") -> Placement:
        """The P/c x c grid of `processes`. Raises InvalidRequest where `replication` does not divide it."""
        what, rule = f"exchange.replication={replication} of {processes} processes", "a grid of P/c x c: c divides P"
        legal = max(c for c in range(1, replication + 1) if processes % c == 0)
        refuse([(processes % replication, what, f"{rule} (Section 4.2)", f"exchange.replication={legal}")])
        return cls(processes // replication, replication, assignment)

    @property
    def processes(self) -> int:
        return self.parts * self.replication

    def rank(self, row: int, column: int) -> int:
        return row * self.replication + column

    def coordinates(self, rank: int) -> tuple[int, int]:
        """Block row and grid column of a rank."""
        return rank // self.replication, rank % self.replication

    def column(self, column: int) -> tuple[int, ...]:
        """The ranks of a grid column, which exchange rows, by block row."""
        return tuple(self.rank(row, column) for row in range(self.parts))

    def row(self, row: int) -> tuple[int, ...]:
        """The ranks that hold block row `row` and sum their products."""
        return tuple(self.rank(row, column) for column in range(self.replication))

    @cached_property
    def columns(self) -> IntArray:
        """(parts, parts): [i, q] is the grid column that multiplies block (i, q)."""
        i, q = np.indices((self.parts, self.parts))
        if self.assignment == "interleaved":
            return (q + i) % self.replication
        run = max(1, self.parts // self.replication)
        return np.minimum(q // run, self.replication - 1)

    def stages(self, rank: int) -> list[int]:
        """The block rows of X that this rank multiplies, ascending (q in Algorithm 2)."""
        row, column = self.coordinates(rank)
        return [int(q) for q in np.flatnonzero(self.columns[row] == column)]


@dataclass(frozen=True, eq=False)
class Volumes:
    """Communication volume and work of one sparse product, in rows and matrix entries.

    Attributes:
        needed: (k, k), [i, q] distinct rows of part q that part i needs, zero on the diagonal.
        rows: (k,) vertices of each part.
        nonzeros: (k, k) entries of each block.
        placement: Process grid.
    """

    needed: IntArray
    rows: IntArray
    nonzeros: IntArray
    placement: Placement

    @property
    def total(self) -> int:
        """Rows sent by all processes."""
        return int(self.needed.sum())

    @property
    def max_pair(self) -> int:
        """Largest number of rows that any part needs from any other part: cut_P(G) in rows (Section 4.1; G3)."""
        return int(self.needed.max(initial=0))

    @property
    def send(self) -> IntArray:
        """(P,) rows that each process sends."""
        return self._by_process(self.needed, axis=0)

    @property
    def receive(self) -> IntArray:
        """(P,) rows that each process receives."""
        return self._by_process(self.needed, axis=1)

    @property
    def entries(self) -> IntArray:
        """(P,) matrix entries that each process multiplies."""
        return self._by_process(self.nonzeros, axis=1)

    @property
    def imbalance(self) -> float:
        """Percent by which the busiest sender exceeds the mean (Table 2); 0 if no rows are sent."""
        return excess(self.send)

    @property
    def all_reduce_rows(self) -> IntArray:
        """(P,) rows of each process's input to the all-reduce over its grid row; zero without replication."""
        if self.placement.replication == 1:
            return np.zeros_like(self.rows)
        return np.repeat(self.rows, self.placement.replication)

    def oblivious(self) -> Volumes:
        """Volumes of the sparsity-oblivious exchange, which sends all rows of every part."""
        needed = np.broadcast_to(self.rows, self.needed.shape).copy()
        np.fill_diagonal(needed, 0)
        return Volumes(needed, self.rows, self.nonzeros, self.placement)

    def on_grid(self, placement: Placement) -> Volumes:
        """The same parts on another grid with as many block rows."""
        return Volumes(self.needed, self.rows, self.nonzeros, placement)

    def _by_process(self, blocks: IntArray, *, axis: int) -> IntArray:
        columns = self.placement.columns
        own_blocks = [np.where(columns == j, blocks, 0).sum(axis=axis) for j in range(self.placement.replication)]
        return np.stack(own_blocks, axis=1).reshape(-1)


def excess(amounts: IntArray) -> float:
    """Percent by which the largest amount exceeds the mean."""
    return float(100 * (amounts.max() / amounts.mean() - 1)) if amounts.sum() else 0.0


def _entries_by_part(matrix: csr_array, parts: IntArray, k: int) -> csr_array:
    """(k, n): [i, v] entries of part i's rows in column v. Part i reads the rows of X in its nonzero columns."""
    n = matrix.shape[0]
    members = csr_array((np.ones(n, np.int64), (parts, np.arange(n))), shape=(k, n))
    ones = csr_array((np.ones(matrix.nnz, np.int64), matrix.indices, matrix.indptr), shape=matrix.shape)
    entries = csr_array(members @ ones)
    entries.sort_indices()
    return entries


def validate_parts(parts: IntArray, n: int, k: int) -> IntArray:
    """The partition vector as int64.

    Raises:
        InvalidRequest: The vector has another length than n, is not integer, or holds an id outside 0 to k - 1.
    """
    assignment = np.asarray(parts)
    whole = np.issubdtype(assignment.dtype, np.integer)
    refuse(
        [
            (assignment.shape != (n,), f"parts of shape {assignment.shape} for {n} vertices", "one part id per vertex"),
            (not whole, f"a partition vector of {assignment.dtype}", "whole numbers"),
        ]
    )
    bad = np.flatnonzero((assignment < 0) | (assignment >= k))
    what = (f"vertex {each} is in part {assignment[each]}; {len(bad) - 1} more are out of range" for each in bad)
    refuse((True, each, f"part ids from 0 to {k - 1}") for each in what)
    return assignment.astype(np.int64)


def count_volumes(matrix: csr_array, parts: IntArray, k: int, placement: Placement | None = None) -> Volumes:
    """Volumes of the product matrix @ X with vertex v in part parts[v], on `placement` or, without one, in 1D."""
    parts = validate_parts(parts, matrix.shape[0], k)
    by_part = _entries_by_part(matrix, parts, k)
    row = np.repeat(np.arange(k), np.diff(by_part.indptr))
    block = row * k + parts[by_part.indices]
    nonzeros = np.bincount(block, weights=by_part.data, minlength=k * k).astype(np.int64).reshape(k, k)
    needed = np.bincount(block, minlength=k * k).reshape(k, k)
    np.fill_diagonal(needed, 0)
    return Volumes(needed, np.bincount(parts, minlength=k), nonzeros, placement or Placement(k))


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """One product on a placement.

    Attributes:
        matrix: (n, n) with rows and columns in the order of the parts.
        offsets: (k + 1,) part i has rows offsets[i] to offsets[i + 1] - 1.
        order: (n,) vertex of the input graph in each row.
    """

    matrix: csr_array
    offsets: IntArray
    order: IntArray
    placement: Placement

    @classmethod
    def build(cls, matrix: csr_array, parts: IntArray, placement: Placement) -> ExchangePlan:
        """Raises InvalidRequest for an invalid partition vector."""
        parts = validate_parts(parts, matrix.shape[0], placement.parts)
        order = np.argsort(parts, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=placement.parts))])
        permuted = csr_array(matrix)[order][:, order]
        permuted.sort_indices()
        return cls(permuted, offsets, order, placement)

    @property
    def vertices(self) -> int:
        return int(self.matrix.shape[0])

    @cached_property
    def parts(self) -> IntArray:
        """(n,) part of each row of the reordered matrix."""
        return np.repeat(np.arange(self.placement.parts), np.diff(self.offsets))

    @cached_property
    def entries_by_part(self) -> csr_array:
        return _entries_by_part(self.matrix, self.parts, self.placement.parts)

    def needs(self, i: int, q: int) -> IntArray:
        """Rows of part q that part i reads, numbered within part q, ascending: NnzCols(i, q). q may equal i."""
        by_part = self.entries_by_part
        columns = by_part.indices[by_part.indptr[i] : by_part.indptr[i + 1]]
        start, stop = np.searchsorted(columns, (self.offsets[q], self.offsets[q + 1]))
        columns_of_q: IntArray = (columns[start:stop] - self.offsets[q]).astype(np.int64)
        return columns_of_q

    @cached_property
    def volumes(self) -> Volumes:
        return count_volumes(self.matrix, self.parts, self.placement.parts, self.placement)
