"""Local block of one process: its rows of the matrix over [own | received] columns, and its send lists.

Columns are numbered anew: first the process's own vertices, then the rows it receives, in the order of the block rows
that send them and ascending within. So what a process holds and computes grows with its own rows and its halo, never
with the whole graph, and one product over compact columns replaces one per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from suite.gnn.plan import ExchangePlan, Placement

Rows = Any  # int64 array


@dataclass(frozen=True, eq=False)
class Share:
    """Work of process `rank` in one product.

    Attributes:
        matrix: (n_i, n_i + halo) the blocks it multiplies, over own columns and received ones.
        sizes: (k,) rows of each part.
        gathered: Its own rows, counted from its first, that go to block rows 0, 1, ... of its column, one after the
            other.
        sent: (k,) how many to each.
        received: (k,) how many rows come from each, in this order.
        ids: (halo,) which row of the sender's part each received one is.
    """

    rank: int
    placement: Placement
    matrix: csr_array
    sizes: Rows
    gathered: Rows
    sent: Rows
    received: Rows
    ids: Rows

    @classmethod
    def of(cls, plan: ExchangePlan, rank: int) -> Share:
        placement, k = plan.placement, plan.placement.parts
        row, column = placement.place(rank)
        mine = (
            placement.columns[:, row] == column
        )  # the block rows whose blocks of these columns this column multiplies
        out = [plan.needs(i, row) if mine[i] and i != row else np.empty(0, np.int64) for i in range(k)]
        stages = placement.stages(rank)
        come = [plan.needs(row, q) if q in stages and q != row else np.empty(0, np.int64) for q in range(k)]
        own_columns = slice(plan.offsets[row], plan.offsets[row + 1])
        rows = csr_array(plan.matrix[own_columns])
        blocks = [rows[:, own_columns]] if row in stages else [csr_array((rows.shape[0],) * 2, dtype=rows.dtype)]
        blocks += [rows[:, plan.offsets[q] + ids] for q, ids in enumerate(come) if len(ids)]
        matrix = csr_array(hstack(blocks, format="csr"))
        matrix.sort_indices()
        return cls(
            rank,
            placement,
            matrix,
            np.diff(plan.offsets),
            np.concatenate(out),
            np.array([len(ids) for ids in out]),
            np.array([len(ids) for ids in come]),
            np.concatenate(come),
        )

    @property
    def rows(self) -> int:
        """n_i: vertices of this block row."""
        return int(self.matrix.shape[0])

    @property
    def halo(self) -> int:
        """Rows that are received."""
        return len(self.ids)

    @property
    def row(self) -> int:
        return self.placement.place(self.rank)[0]

    @property
    def column(self) -> int:
        return self.placement.place(self.rank)[1]

    @cached_property
    def _halo_at(self) -> Rows:
        return self.rows + np.concatenate([[0], np.cumsum(self.received)])

    def compact(self, q: int) -> csr_array:
        """(n_i, n_i) of its own block row, (n_i, received[q]) of another: the block over columns that have an entry."""
        start, stop = (0, self.rows) if q == self.row else self._halo_at[q : q + 2]
        return csr_array(self.matrix[:, start:stop])

    def whole(self, q: int) -> csr_array:
        """(n_i, n_q): block (i, q) over all columns of part q, as an exchange wants it that sends whole parts."""
        block = self.compact(q)
        if q == self.row:
            return block
        ids = self.ids[self._halo_at[q] - self.rows : self._halo_at[q + 1] - self.rows]
        shape = (self.rows, int(self.sizes[q]))
        return csr_array((block.data, ids[block.indices], block.indptr), shape=shape)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Plain arrays that `read` makes a share of again."""
        arrays_by_name = {
            "data": self.matrix.data,
            "indices": self.matrix.indices,
            "indptr": self.matrix.indptr,
            "sizes": self.sizes,
            "gathered": self.gathered,
            "sent": self.sent,
            "received": self.received,
            "ids": self.ids,
            "rank": np.asarray(self.rank, np.int64),
            "replication": np.asarray(self.placement.replication, np.int64),
            "assignment": np.frombuffer(self.placement.assignment.encode(), np.uint8),
        }
        return {f"{prefix}.{name}": value for name, value in arrays_by_name.items()}

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Share:
        """Raises KeyError where `arrays` hold no such share."""
        arrays_by_name = {name: arrays[f"{prefix}.{name}"] for name in _NAMES}
        sizes, rank = arrays_by_name["sizes"], int(arrays_by_name["rank"])
        placement = Placement(
            len(sizes), int(arrays_by_name["replication"]), arrays_by_name["assignment"].tobytes().decode()
        )
        shape = (len(arrays_by_name["indptr"]) - 1, int(sizes[placement.place(rank)[0]]) + len(arrays_by_name["ids"]))
        matrix = csr_array((arrays_by_name["data"], arrays_by_name["indices"], arrays_by_name["indptr"]), shape=shape)
        return cls(
            rank, placement, matrix, sizes, *(arrays_by_name[name] for name in ("gathered", "sent", "received", "ids"))
        )


_NAMES = (
    "data",
    "indices",
    "indptr",
    "sizes",
    "gathered",
    "sent",
    "received",
    "ids",
    "rank",
    "replication",
    "assignment",
)
