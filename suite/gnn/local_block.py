"""Local block of one process: its rows of the matrix over [own | received] columns, and its send lists.

Columns are renumbered: first the process's own vertices, then the received rows, ordered by sending block row and
ascending within it. Memory and work of a process grow with its own rows and its halo, never with the whole graph. One
product over compact columns replaces one product per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from suite.gnn.plan import ExchangePlan, IntArray, Placement

_ENTRIES = ("data", "indices", "indptr")  # arrays of a matrix
_ARRAYS = ("sizes", "send_rows", "send_counts", "recv_counts", "halo_ids")  # fields that are plain arrays


@dataclass(frozen=True, eq=False)
class LocalBlock:
    """Part of process `rank` in one sparse product.

    Attributes:
        matrix: (n_i, n_i + halo) entries of the blocks it multiplies, over own columns and received ones.
        sizes: (k,) vertices of each part.
        send_rows: Rows to send, numbered from the process's first: those for block row 0 of its grid column, then
            those for block row 1, and so on.
        send_counts: (k,) rows sent to each block row.
        recv_counts: (k,) rows received from each block row.
        halo_ids: (halo,) number of each received row within the sender's part.
    """

    rank: int
    placement: Placement
    matrix: csr_array
    sizes: IntArray
    send_rows: IntArray
    send_counts: IntArray
    recv_counts: IntArray
    halo_ids: IntArray

    @classmethod
    def from_plan(cls, plan: ExchangePlan, rank: int) -> LocalBlock:
        placement, k = plan.placement, plan.placement.parts
        row, column = placement.coordinates(rank)
        none = np.empty(0, np.int64)
        # block rows that need this part's rows from this grid column
        receivers = placement.columns[:, row] == column
        send = [plan.needs(i, row) if receivers[i] and i != row else none for i in range(k)]
        stages = placement.stages(rank)
        recv = [plan.needs(row, q) if q in stages and q != row else none for q in range(k)]
        own_columns = slice(plan.offsets[row], plan.offsets[row + 1])
        rows = csr_array(plan.matrix[own_columns])
        blocks = [rows[:, own_columns]] if row in stages else [csr_array((rows.shape[0],) * 2, dtype=rows.dtype)]
        blocks += [rows[:, plan.offsets[q] + ids] for q, ids in enumerate(recv) if len(ids)]
        matrix = csr_array(hstack(blocks, format="csr"))
        matrix.sort_indices()
        return cls(
            rank,
            placement,
            matrix,
            np.diff(plan.offsets),
            np.concatenate(send),
            np.array([len(ids) for ids in send]),
            np.array([len(ids) for ids in recv]),
            np.concatenate(recv),
        )

    @property
    def rows(self) -> int:
        """n_i: vertices of this block row."""
        return int(self.matrix.shape[0])

    @property
    def halo(self) -> int:
        """Number of received rows."""
        return len(self.halo_ids)

    @property
    def row(self) -> int:
        return self.placement.coordinates(self.rank)[0]

    @cached_property
    def _halo_offsets(self) -> IntArray:
        """(k + 1,) first column of the rows received from each block row."""
        return self.rows + np.concatenate([[0], np.cumsum(self.recv_counts)])

    def compact(self, q: int) -> csr_array:
        """Block (i, q) over its nonzero columns, (n_i, recv_counts[q]); over all own columns, (n_i, n_i), for q = i."""
        start, stop = (0, self.rows) if q == self.row else self._halo_offsets[q : q + 2]
        return csr_array(self.matrix[:, start:stop])

    def full_width(self, q: int) -> csr_array:
        """Block (i, q) over all columns of part q, (n_i, n_q), for an exchange that sends all rows of a part."""
        block = self.compact(q)
        if q == self.row:
            return block
        ids = self.halo_ids[self._halo_offsets[q] - self.rows : self._halo_offsets[q + 1] - self.rows]
        shape = (self.rows, int(self.sizes[q]))
        return csr_array((block.data, ids[block.indices], block.indptr), shape=shape)

    def to_arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Plain arrays under names that begin with `prefix`; `from_arrays` is the inverse."""
        arrays = {name: vars(self)[name] for name in _ARRAYS} | {name: vars(self.matrix)[name] for name in _ENTRIES}
        return {f"{prefix}.{name}": array for name, array in arrays.items()}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], prefix: str, rank: int, placement: Placement
    ) -> LocalBlock:
        """Raises KeyError where an array is missing."""
        plain = {name: arrays[f"{prefix}.{name}"] for name in _ARRAYS}
        columns = int(plain["sizes"][placement.coordinates(rank)[0]]) + len(plain["halo_ids"])
        data, indices, indptr = (arrays[f"{prefix}.{name}"] for name in _ENTRIES)
        matrix = csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns))
        return cls(rank, placement, matrix, **plain)
