"""Shard of one process: its blocks of the two sparse products, and the data of its vertices.

The parent process writes one file per rank, and each rank reads its own, so no rank holds the whole graph.

Columns of a block are renumbered: first the process's own vertices, then the received rows, ordered by sending block
row and ascending within it. Memory and work of a process grow with its own rows and its halo, never with the whole
graph. One product over compact columns replaces one product per block.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from suite.core.errors import DamagedRecord, InvalidRequest
from suite.data.graphs.graph import Graph
from suite.gnn.plan import ExchangePlan, IntArray, Placement

Array = NDArray[Any]
MASKS = ("train", "validation", "test")
ARRAYS = ("features", "labels", "vertices")  # plain arrays of a shard
ENTRIES = ("data", "indices", "indptr")  # arrays of a matrix
BLOCK_ARRAYS = ("sizes", "send_rows", "send_counts", "recv_counts", "halo_ids")  # plain arrays of a block


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

    def to_arrays(self, prefix: str) -> dict[str, Array]:
        """Plain arrays under names that begin with `prefix`; `from_arrays` is the inverse."""
        arrays = {name: vars(self)[name] for name in BLOCK_ARRAYS} | {name: vars(self.matrix)[name] for name in ENTRIES}
        return {f"{prefix}.{name}": array for name, array in arrays.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], prefix: str, rank: int, placement: Placement) -> LocalBlock:
        """Raises KeyError where an array is missing."""
        plain = {name: arrays[f"{prefix}.{name}"] for name in BLOCK_ARRAYS}
        columns = int(plain["sizes"][placement.coordinates(rank)[0]]) + len(plain["halo_ids"])
        data, indices, indptr = (arrays[f"{prefix}.{name}"] for name in ENTRIES)
        matrix = csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns))
        return cls(rank, placement, matrix, **plain)


@dataclass(frozen=True, eq=False)
class RankShard:
    """Data of one rank.

    Attributes:
        forward: Block of the product A^T X.
        backward: Block of the product A X; the same object where A is symmetric.
        features: (n_i, f).
        labels: (n_i,).
        masks: By name, (n_i,) bool.
        counts: By name of a mask, vertices of the whole graph in it.
        vertices: (n_i,) numbers of the vertices in the input graph.
        classes: Number of distinct labels.
    """

    forward: LocalBlock
    backward: LocalBlock
    features: Array
    labels: Array
    masks: dict[str, Array]
    counts: dict[str, int]
    vertices: Array
    classes: int

    def save(self, path: Path) -> None:
        """Write one npz file of plain arrays, and of text for the numbers."""
        blocks = {"forward": self.forward} | ({} if self.backward is self.forward else {"backward": self.backward})
        block_arrays = [block.to_arrays(name) for name, block in blocks.items()]
        numbers = [self.forward.rank, astuple(self.forward.placement), self.counts, self.classes]
        arrays = {name: vars(self)[name] for name in ARRAYS} | {f"mask.{name}": self.masks[name] for name in MASKS}
        np.savez(path, numbers=json.dumps(numbers), **arrays, **dict(ChainMap(*block_arrays)))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> RankShard:
        """Raises DamagedRecord for a file that holds no shard."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            rank, placement, counts, classes = json.loads(str(arrays["numbers"]))
            names = ("forward", "backward") if "backward.data" in arrays else ("forward",)
            blocks = [LocalBlock.from_arrays(arrays, name, rank, Placement(*placement)) for name in names]
            masks = {name: arrays[f"mask.{name}"] for name in MASKS}
            plain = {name: arrays[name] for name in ARRAYS}
            return cls(blocks[0], blocks[-1], masks=masks, counts=counts, classes=classes, **plain)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DamagedRecord(f"{path.name} holds no rank's shard: {error}") from error


def build_plans(operator: csr_array, parts: Array, placement: Placement) -> tuple[ExchangePlan, ExchangePlan]:
    """Plans of the forward product A^T X and of the backward product A X; one object where A is symmetric."""
    backward = ExchangePlan.build(operator, parts, placement)
    if is_symmetric(operator):
        return backward, backward
    return ExchangePlan.build(sorted_transpose(operator), parts, placement), backward


def sorted_transpose(matrix: csr_array) -> csr_array:
    """The transpose in CSR form with sorted indices, which plans require."""
    transpose = csr_array(matrix.T.tocsr())
    transpose.sort_indices()
    return transpose


def is_symmetric(matrix: csr_array) -> bool:
    return bool((matrix != matrix.T).nnz == 0)


def build_shards(
    forward: ExchangePlan, backward: ExchangePlan, graph: Graph, dtype: str = "float32"
) -> Iterator[RankShard]:
    """Yield the shards of all ranks in rank order.

    Raises:
        InvalidRequest: No vertex is in the training mask, or a vertex in a mask has no legal label.
    """
    features, labels, classes, masks = graph.features, graph.labels, graph.classes, graph.masks
    assert features is not None
    assert labels is not None
    counts = {name: int(masks[name].sum()) for name in MASKS}
    if not counts["train"]:
        raise InvalidRequest("no vertex in the training mask", rule="at least one")
    labelled = masks["train"] | masks["validation"] | masks["test"]
    if len(bad := np.flatnonzero(labelled & ((labels < 0) | (labels >= classes)))):
        raise InvalidRequest(
            f"vertex {bad[0]} is in a mask and has the label {labels[bad[0]]}; {len(bad) - 1} more are out of range",
            rule=f"labels from 0 to {classes - 1}",
        )
    for rank in range(forward.placement.processes):
        row, _ = forward.placement.coordinates(rank)
        vertices = forward.order[forward.offsets[row] : forward.offsets[row + 1]]
        block = LocalBlock.from_plan(forward, rank)
        yield RankShard(
            block,
            block if backward is forward else LocalBlock.from_plan(backward, rank),
            np.ascontiguousarray(features[vertices], dtype=dtype),
            np.ascontiguousarray(labels[vertices], dtype=np.int64),
            {name: masks[name][vertices] for name in MASKS},
            counts,
            vertices,
            classes,
        )
