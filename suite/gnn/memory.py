"""Predicted memory of one process in full-graph training: O(nnz / P + (n_i + halo) f L), never O(n).

Counted are tensors: matrices with their indices, features, model states, message buffers and the peak of the
activations. The peak is found by walking through the operations of an epoch (models/gcn.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from suite.gnn.local_block import LocalBlock
from suite.gnn.rank_shard import RankShard
from suite.workload.gcn import DENSE_FIRST, DENSE_LAST, GCN, KEPT, PRINTED, how

INDEX = {"cpu": 8, "cuda": 4}  # bytes: torch's kernels on a CPU take 64-bit indices, and copy narrower ones


def matrix_bytes(block: LocalBlock, *, form: str, width: int, index: int = INDEX["cpu"]) -> int:
    """Bytes of an exchange's matrices: every entry once, and the row pointers of each nonempty matrix."""
    if form == "fused":  # one matrix of own columns, one of halo columns
        own_entries = block.compact(block.row).nnz
        copies = (own_entries > 0) + (block.matrix.nnz > own_entries)
    else:
        copies = sum(block.compact(q).nnz > 0 for q in block.placement.stages(block.rank))
    return int(block.matrix.nnz * (index + width) + copies * (block.rows + 1) * index)


def buffer_bytes(block: LocalBlock, widths: Sequence[int], *, form: str, width: int) -> int:
    """Bytes of message buffers, one set for each distinct number of columns in `widths`."""
    if form == "oblivious":
        rows = sum({int(block.sizes[q]) for q in block.placement.stages(block.rank) if q != block.row})
    else:
        rows = len(block.send_rows) + block.halo
    return rows * sum(set(widths)) * width


class _PeakCounter:
    """Number of live values, and its maximum so far."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def allocate(self, *sizes: int) -> None:
        for size in sizes:
            self.live += size
            self.peak = max(self.peak, self.live)

    def free(self, *sizes: int) -> None:
        self.live -= sum(sizes)


def peak_activations(
    widths: Sequence[int],
    rows: int,
    train_rows: int,
    *,
    order: str = "paper",
    epoch: str = "paper",
    paired: bool = False,
) -> int:
    """Largest number of live values in an epoch, in addition to features, buffers and model states.

    Args:
        widths: Columns of H^0 to H^L.
        rows: n_i.
        train_rows: Training vertices among them.
        order, epoch: See suite.workload.gcn.how.
        paired: Whether two replicas sum a product by exchanging it, which takes a buffer of its size.
    """
    counter, modes = (
        _PeakCounter(),
        [how(at, before, after, order=order, epoch=epoch) for at, (before, after) in enumerate(pairwise(widths))],
    )
    last = len(modes) - 1
    for at, (before, after) in enumerate(pairwise(widths)):
        first = {PRINTED: before, DENSE_LAST: before, DENSE_FIRST: after, KEPT: 0}[modes[at]] * rows
        if paired:  # the sparse product is summed: the first one, or the one after the dense product
            summed = 0 if modes[at] == KEPT else first
            inputs = [first, summed] if modes[at] == DENSE_FIRST else [summed]
            counter.allocate(*inputs, summed)
            counter.free(*inputs, summed)
        counter.allocate(first, after * rows)
        counter.free(0 if modes[at] == DENSE_LAST else first)  # DENSE_LAST saves it for dW
        if at < last:
            counter.allocate(after * rows)  # the activation, which is saved
            counter.free(after * rows)
    output, logits = train_rows * widths[-1], widths[-1] * rows
    counter.allocate(output, output)  # the outputs that the loss reads, and their logarithms
    counter.free(output, logits)
    counter.allocate(output, output)
    counter.free(output, output)
    counter.allocate(logits)
    counter.free(output)
    for at in range(last, -1, -1):
        before, after = widths[at] * rows, widths[at + 1] * rows
        weights = widths[at] * widths[at + 1]
        input_gradient = before if at else 0
        if modes[at] in (PRINTED, DENSE_FIRST):
            counter.allocate(after, after if paired else 0)
            counter.free(after if paired else 0)
            counter.allocate(input_gradient, weights)
            counter.free(after, after, weights)
        else:
            counter.allocate(weights, input_gradient, input_gradient, input_gradient if paired else 0)
            counter.free(input_gradient if paired else 0)
            counter.free(weights, after, input_gradient, before if modes[at] == DENSE_LAST else 0)
        counter.allocate(input_gradient)
        counter.free(input_gradient, input_gradient)
    return counter.peak


def predict_memory(
    shard: RankShard,
    shape: GCN,
    *,
    form: str,
    width: int,
    moments: int = 2,
    paired: bool = False,
    order: str = "paper",
    epoch: str = "paper",
    device: str = "cpu",
) -> dict[str, int]:
    """Bytes of one process by kind, as Trainer.memory counts them.

    Args:
        shard: The process's part of the graph.
        shape: The network.
        form: Form of the exchange: fused, staged or oblivious.
        width: Bytes of a value.
        moments: Optimizer states per weight, 2 for Adam.
        paired, order, epoch: See `peak_activations`.
        device: cpu or cuda.
    """
    rows, features = map(int, shard.features.shape)
    widths = shape.widths(features, shard.classes)
    products = shape.products(features, shard.classes, order=order, epoch=epoch)
    forward = [*(product.width for product in products if not product.backward), *([features] * (epoch == "lean"))]
    backward = [product.width for product in products if product.backward]
    symmetric = shard.backward is shard.forward
    blocks = [shard.forward] if symmetric else [shard.forward, shard.backward]
    block_widths = [forward + backward] if symmetric else [forward, backward]
    states = shape.parameters(features, shard.classes) * width
    train_rows = int(shard.masks["train"].sum())
    return {
        "weights": states,
        "gradients": states,
        "moments": moments * states,
        "graph": sum(matrix_bytes(block, form=form, width=width, index=INDEX[device]) for block in blocks),
        "features": rows * features * width * (2 if epoch == "lean" else 1),  # lean keeps A^T X too
        "rows": sum(
            buffer_bytes(block, columns, form=form, width=width)
            for block, columns in zip(blocks, block_widths, strict=True)
        ),
        "activations": peak_activations(widths, rows, train_rows, order=order, epoch=epoch, paired=paired) * width,
    }
