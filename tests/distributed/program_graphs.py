"""Rank program of test_graphs.py: an epoch of a directed graph on every grid of this world, over real messages.

Bytes are counted at the calls of torch.distributed, independently of the exchange's own count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from suite.comm.world import init_world
from suite.core.protocols import World
from suite.engine.optim.optimizer import SGD
from suite.gnn.memory import predict_memory
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans
from suite.gnn.train import Trainer
from suite.workload.gcn import GCN
from tests.support.graphs import EXCHANGES, dense, problem, shards_of, uneven

torch.set_num_threads(1)
counted = [0]  # bytes sent by this rank


@contextmanager
def count_sent_bytes() -> Iterator[None]:
    """Patch torch.distributed to add the bytes that this rank sends to `counted`."""
    all_to_all, broadcast, batch = dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv

    def counting_all_to_all(output: Any, outgoing: Any, *rest: Any, **options: Any) -> Any:
        counted[0] += outgoing.nbytes
        return all_to_all(output, outgoing, *rest, **options)

    def counting_broadcast(tensor: Any, root: int, **options: Any) -> Any:
        if root == dist.get_rank():
            counted[0] += tensor.nbytes * (dist.get_world_size(options["group"]) - 1)
        return broadcast(tensor, root, **options)

    def counting_batch(ops: list[Any]) -> Any:
        counted[0] += sum(op.tensor.nbytes for op in ops if op.op is dist.isend)
        return batch(ops)

    dist.all_to_all_single, dist.broadcast = counting_all_to_all, counting_broadcast
    dist.batch_isend_irecv = counting_batch
    yield
    dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv = all_to_all, broadcast, batch


def check_epoch(world: World, placement: Placement, exchange: str) -> None:
    graph = problem(seed=world.size, features=40)
    parts = uneven(37, placement.parts)
    shard, shape = shards_of(graph, placement, parts)[world.rank], GCN(3, 4)
    trainer = Trainer(shard, world, exchange=EXCHANGES[exchange], optimizer=SGD(lr=0.5), shape=shape, dtype="float64")
    counted[0] = 0
    loss = trainer.gradients()
    weights = [layer.weight.detach().numpy() for layer in trainer.layers]
    gradients = [trainer.state.dense(trainer.state.gradient, layer.weight).numpy() for layer in trainer.layers]
    dense_loss, dense_gradients, _, _ = dense(graph, weights)
    assert abs(loss - dense_loss) < 1e-12
    for ours, reference in zip(gradients, dense_gradients, strict=True):
        assert np.abs(ours - reference).max() < 1e-12, (placement, exchange)
    volumes = [plan.volumes for plan in build_plans(graph.operator, parts, placement)]
    rows = [int((each.oblivious() if exchange == "oblivious" else each).send[world.rank]) for each in volumes]
    planned = sum(8 * product.width * rows[product.backward] for product in shape.products(40, 3))
    assert counted[0] == trainer.sent == planned, (counted, trainer.sent, planned, placement, exchange)
    trainer.epoch()
    _, allocated = trainer.memory()
    paired = placement.replication == 2 and world.backend == "mpi"
    form = exchange.replace("overlapped", "fused")
    predicted = predict_memory(shard, shape, form=form, width=8, moments=1, paired=paired)
    assert {**allocated, "activations": 0} == {**predicted, "activations": 0}, (allocated, predicted)
    tolerance = 512  # bytes: scalars such as losses and counts
    if placement.replication > 1:  # gloo's thread frees the buffer of a sum shortly after the sum is complete
        tolerance += shard.forward.rows * 4 * 8
    difference = abs(allocated["activations"] - predicted["activations"])
    assert difference <= tolerance, (allocated, predicted, placement, exchange)


def main() -> None:
    world = init_world()
    checked = 0
    with count_sent_bytes():
        for replication in range(1, world.size + 1):
            if world.size % replication == 0:
                for exchange in EXCHANGES:
                    check_epoch(world, Placement.of(world.size, replication), exchange)
                    checked += 1
    world.close()
    if world.rank == 0:
        print(f"{checked} epochs")


if __name__ == "__main__":
    main()
