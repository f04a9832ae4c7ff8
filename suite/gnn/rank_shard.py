"""Shard of one process: its blocks of the two sparse products, and the data of its vertices.

The parent process writes one file per rank, and each rank reads its own, so no rank holds the whole graph."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from suite.core.errors import DamagedRecord, InvalidRequest
from suite.data.graphs.graph import Graph
from suite.gnn.local_block import LocalBlock
from suite.gnn.plan import ExchangePlan, Placement

Array = NDArray[Any]
MASKS = ("train", "validation", "test")
ARRAYS = ("features", "labels", "vertices")  # fields that are plain arrays


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
