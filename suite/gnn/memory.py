"""Memory of one process in full-graph training: O(nnz / P + (n_i + halo) f L), never O(n).

Counted are tensors: matrices with their indices, features, model states, rooms for rows that travel, and what an epoch
holds at its worst moment, which is found by walking through the epoch (models/gcn.py) and adding up what lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from suite.gnn.local_block import Share
from suite.gnn.rank_shard import RankShard
from suite.workload.gcn import DENSE_FIRST, DENSE_LAST, GCN, KEPT, PRINTED, how

INDEX = 8  # bytes: torch's kernels on a CPU take 64-bit indices, and copy narrower ones


def matrix_bytes(share: Share, *, form: str, width: int) -> int:
    """Of the matrices that an exchange makes of a share: every entry once, and the row pointers of each matrix."""
    if form == "fused":  # one of its own columns, one of those that come
        own_entries = share.compact(share.row).nnz
        copies = (own_entries > 0) + (share.matrix.nnz > own_entries)
    else:
        copies = sum(share.compact(q).nnz > 0 for q in share.placement.stages(share.rank))
    return int(share.matrix.nnz * (INDEX + width) + copies * (share.rows + 1) * INDEX)


def room_bytes(share: Share, widths: Sequence[int], *, form: str, width: int) -> int:
    """Of the rooms for rows that travel, one for each width that is multiplied."""
    if form == "oblivious":
        sizes = {int(share.sizes[q]) for q in share.placement.stages(share.rank) if q != share.row}
        rows = sum(sizes)
    else:
        rows = len(share.gathered) + share.halo
    return rows * sum(set(widths)) * width


class _Walk:
    """Live values, and their maximum so far."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def take(self, *sizes: int) -> None:
        for size in sizes:
            self.live += size
            self.peak = max(self.peak, self.live)

    def drop(self, *sizes: int) -> None:
        self.live -= sum(sizes)


def activations(
    widths: Sequence[int], rows: int, trained: int, *, order: str = "paper", epoch: str = "paper", paired: bool = False
) -> int:
    """The maximum of live values in an epoch, in addition to features, rooms and model states.

    Args:
        widths: Columns of H^0 to H^L.
        rows: n_i.
        trained: Of them the training vertices.
        paired: Whether a product is summed with one other process's, for which there is room while it is.
    """
    walk, modes = _Walk(), [how(at, b, a, order=order, epoch=epoch) for at, (b, a) in enumerate(pairwise(widths))]
    last = len(modes) - 1
    for at, (before, after) in enumerate(pairwise(widths)):
        first = {PRINTED: before, DENSE_LAST: before, DENSE_FIRST: after, KEPT: 0}[modes[at]] * rows
        if paired:  # of the product: it comes first, or after the dense one
            moved = 0 if modes[at] == KEPT else first
            walk.take(*([first, moved] if modes[at] == DENSE_FIRST else [moved]), moved)
            walk.drop(*([first, moved] if modes[at] == DENSE_FIRST else [moved]), moved)
        walk.take(first, after * rows)
        walk.drop(0 if modes[at] == DENSE_LAST else first)  # DENSE_LAST saves it for dW
        if at < last:
            walk.take(after * rows)  # of the activation, which is saved
            walk.drop(after * rows)
    output_bytes, classes = trained * widths[-1], widths[-1] * rows
    walk.take(output_bytes, output_bytes)  # the outputs that the loss reads, and their logarithms
    walk.drop(output_bytes, classes)
    walk.take(output_bytes, output_bytes)
    walk.drop(output_bytes, output_bytes)
    walk.take(classes)
    walk.drop(output_bytes)
    for at in range(last, -1, -1):
        before, after = widths[at] * rows, widths[at + 1] * rows
        weights = widths[at] * widths[at + 1]
        outer = before if at else 0
        if modes[at] in (PRINTED, DENSE_FIRST):
            walk.take(after, after if paired else 0)
            walk.drop(after if paired else 0)
            walk.take(outer, weights)
            walk.drop(after, after, weights)
        else:
            walk.take(weights, *([outer, outer] if at else []), *([outer] if at and paired else []))
            walk.drop(*([outer] if at and paired else []))
            walk.drop(weights, after, *([outer] if at else []), *([before] if modes[at] == DENSE_LAST else []))
        if at:
            walk.take(outer)
            walk.drop(outer, outer)
    return walk.peak


def predicted(
    holding: RankShard,
    shape: GCN,
    *,
    form: str,
    width: int,
    moments: int = 2,
    paired: bool = False,
    order: str = "paper",
    epoch: str = "paper",
) -> dict[str, int]:
    """Bytes of one process by kind, as Trainer.memory counts them.

    Args:
        form: Of the exchange, fused, staged or oblivious.
        width: Bytes of a value.
        moments: States of the optimizer, 2 of Adam.
    """
    rows, features = holding.features.shape
    widths = shape.widths(int(features), holding.classes)
    moved = shape.products(int(features), holding.classes, order=order, epoch=epoch)
    ahead = [*(one.width for one in moved if not one.backward), *([features] if epoch == "lean" else [])]
    back = [one.width for one in moved if one.backward]
    both = [holding.forward] if holding.backward is holding.forward else [holding.forward, holding.backward]
    used = [ahead + back] if len(both) == 1 else [ahead, back]
    states = shape.parameters(int(features), holding.classes) * width
    activation_bytes = activations(
        widths, rows, int(holding.masks["train"].sum()), order=order, epoch=epoch, paired=paired
    )
    return {
        "weights": states,
        "gradients": states,
        "moments": moments * states,
        "graph": sum(matrix_bytes(share, form=form, width=width) for share in both),
        "features": rows * features * width * (2 if epoch == "lean" else 1),  # and the product that is kept
        "rows": sum(room_bytes(share, of, form=form, width=width) for share, of in zip(both, used, strict=True)),
        "activations": activation_bytes * width,
    }
