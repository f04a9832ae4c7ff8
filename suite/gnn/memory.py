"""Predicted memory of one process in full-graph training: O(nnz / P + (n_i + halo) f L), never O(n).

Counted are tensors: matrices with their indices, features, model states, message buffers and the peak of the
activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

from suite.gnn.rank_shard import LocalBlock, RankShard
from suite.workload.gcn import GCN

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


def peak_activations(
    shape: GCN, features: int, classes: int, rows: int, train_rows: int, *, width: int, paired: bool
) -> int:
    """Largest number of live bytes in an epoch, in addition to features, buffers and model states.

    An epoch of the network's layers runs on the meta device, with products that allocate as an exchange does.

    Args:
        shape: The network.
        features, classes: Columns of H^0 and H^L.
        rows: n_i.
        train_rows: Training vertices among them.
        width: Bytes of a value.
        paired: Whether two replicas sum a product by exchanging it, which takes a buffer of its size.
    """
    import torch
    from torch.nn.functional import cross_entropy, relu

    from suite.engine.memory_tracker import MemoryTracker
    from suite.models.gcn import layers
    from suite.models.shared import on_meta

    dtype, tracker = {4: torch.float32, 8: torch.float64}[width], MemoryTracker()

    def product(x: torch.Tensor) -> torch.Tensor:
        z = torch.empty(rows, x.shape[1], dtype=dtype, device="meta")
        if paired:
            torch.empty_like(z)
        return z

    silent = SimpleNamespace(span=lambda category: nullcontext())
    modules = layers(shape, features, classes, product=product, back=product, watch=silent, seed=0)
    modules.to("meta", dtype)

    def loss(z: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(modules, 1):
            z = layer(z) if at == len(modules) else relu(layer(z))
        return cross_entropy(z[chosen], labels[chosen], reduction="sum")

    with on_meta():
        x = torch.empty(rows, features, dtype=dtype)
        chosen, labels = torch.empty(train_rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
        for weight in modules.parameters():
            weight.grad = torch.empty_like(weight)
        loss(x)  # the lean epoch keeps the first product of the first one
    with tracker, on_meta():
        loss(x).backward()
    return tracker.peak


def predict_memory(
    shard: RankShard,
    shape: GCN,
    *,
    form: str,
    width: int,
    moments: int = 2,
    paired: bool = False,
    device: str = "cpu",
) -> dict[str, int]:
    """Bytes of one process by kind, as Trainer.memory counts them.

    Args:
        shard: The process's part of the graph.
        shape: The network.
        form: Form of the exchange: fused, staged or oblivious.
        width: Bytes of a value.
        moments: Optimizer states per weight, 2 for Adam.
        paired: See `peak_activations`.
        device: cpu or cuda.
    """
    rows, features = map(int, shard.features.shape)
    products, kept = shape.products(features, shard.classes), shape.epoch == "lean"
    forward = [*(product.width for product in products if not product.backward), *([features] * kept)]
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
        "features": rows * features * width * (1 + kept),  # lean keeps A^T X too
        "rows": sum(
            buffer_bytes(block, columns, form=form, width=width)
            for block, columns in zip(blocks, block_widths, strict=True)
        ),
        "activations": peak_activations(shape, features, shard.classes, rows, train_rows, width=width, paired=paired),
    }
