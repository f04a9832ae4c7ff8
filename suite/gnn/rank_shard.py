"""Shard of one process: its blocks of the two products, and the data of its vertices.

The planning process writes it once, and each process reads its own: no process sees the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from suite.core.errors import DamagedRecord, InvalidRequest
from suite.gnn.local_block import Share
from suite.gnn.plan import ExchangePlan, Placement

Array = NDArray[Any]
MASKS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class RankShard:
    """forward, backward: shares of A^T X and A X, one object where A is symmetric
    features: (n_i, f); labels: (n_i,); masks: by name (n_i,) bool; counts: by name, over all vertices
    vertices: (n_i,) their numbers in the graph as it was given; classes: of the labels
    """

    forward: Share
    backward: Share
    features: Array
    labels: Array
    masks: dict[str, Array]
    counts: dict[str, int]
    vertices: Array
    classes: int

    def save(self, path: Path) -> None:
        """One npz file; nothing in it is code."""
        back = {} if self.backward is self.forward else self.backward.arrays("backward")
        arrays: dict[str, Array] = dict(
            **self.forward.arrays("forward"),
            **back,
            features=self.features,
            labels=self.labels,
            vertices=self.vertices,
            classes=np.asarray(self.classes, np.int64),
            **{f"mask.{name}": mask for name, mask in self.masks.items()},
            **{f"count.{name}": np.asarray(count, np.int64) for name, count in self.counts.items()},
        )
        np.savez(path, **arrays)  # type: ignore[arg-type]  # of its keyword allow_pickle, which no name here is

    @classmethod
    def load(cls, path: Path) -> RankShard:
        """Raises DamagedRecord for a file that holds none."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            forward = Share.read(arrays, "forward")
            return cls(
                forward,
                Share.read(arrays, "backward") if "backward.data" in arrays else forward,
                arrays["features"],
                arrays["labels"],
                {name: arrays[f"mask.{name}"] for name in MASKS},
                {name: int(arrays[f"count.{name}"]) for name in MASKS},
                arrays["vertices"],
                int(arrays["classes"]),
            )
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DamagedRecord(f"{path.name} is nothing that a process holds: {error}") from error


def plans(operator: csr_array, parts: Array, placement: Placement) -> tuple[ExchangePlan, ExchangePlan]:
    """Of the forward product A^T X and of the backward product A X; the same plan where A is symmetric."""
    backward = ExchangePlan.of(operator, parts, placement)
    if symmetric(operator):
        return backward, backward
    return ExchangePlan.of(transposed(operator), parts, placement), backward


def transposed(matrix: csr_array) -> csr_array:
    """Sorted, as plans want it."""
    transpose = csr_array(matrix.T.tocsr())
    transpose.sort_indices()
    return transpose


def symmetric(matrix: csr_array) -> bool:
    return bool((matrix != matrix.T).nnz == 0)


def holdings(
    forward: ExchangePlan,
    backward: ExchangePlan,
    *,
    features: Array,
    labels: Array,
    masks: dict[str, Array],
    classes: int,
    dtype: str = "float32",
) -> Iterator[RankShard]:
    """Shards of all processes, in rank order, one at a time. Raises InvalidRequest where there is nothing to learn
    from.
    """
    counts = {name: int(masks[name].sum()) for name in MASKS}
    if not counts["train"]:
        raise InvalidRequest("no vertex to train on", rule="at least one in the training mask")
    labelled = masks["train"] | masks["validation"] | masks["test"]
    if len(bad := np.flatnonzero(labelled & ((labels < 0) | (labels >= classes)))):
        raise InvalidRequest(
            f"vertex {bad[0]} is asked for and has the label {labels[bad[0]]}, as have {len(bad) - 1} more",
            rule=f"labels from 0 to {classes - 1}",
        )
    for rank in range(forward.placement.processes):
        row, _ = forward.placement.place(rank)
        vertices = forward.order[forward.offsets[row] : forward.offsets[row + 1]]
        share = Share.of(forward, rank)
        yield RankShard(
            share,
            share if backward is forward else Share.of(backward, rank),
            np.ascontiguousarray(features[vertices], dtype=dtype),
            np.ascontiguousarray(labels[vertices], dtype=np.int64),
            {name: masks[name][vertices] for name in MASKS},
            counts,
            vertices,
            classes,
        )
