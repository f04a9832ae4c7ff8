"""Program of each rank for test_graphs.py: an epoch of a directed graph on every grid of this world, over real
messages.

Bytes are counted where torch.distributed is called, so that what the exchange says of itself is not asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from suite.comm import here
from suite.core.protocols import World
from suite.engine.optim.optimizer import SGD
from suite.gnn.memory import predicted
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import plans
from suite.gnn.train import Trainer
from suite.workload.gcn import GCN
from tests.support.graphs import EXCHANGES, dense, held, problem, uneven

torch.set_num_threads(1)
counted = [0]


def bytes_of(tensors: Any, own: int = 0) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) - own


def count() -> None:
    """Rows that leave this rank through torch.distributed from now on."""
    all_to_all, broadcast, batch = dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv

    def counting_all_to_all(output: Any, given: Any, *rest: Any, **options: Any) -> Any:
        counted[0] += bytes_of([given])
        return all_to_all(output, given, *rest, **options)

    def counting_broadcast(tensor: Any, root: int, **options: Any) -> Any:
        if root == dist.get_rank():
            counted[0] += bytes_of([tensor]) * (dist.get_world_size(options["group"]) - 1)
        return broadcast(tensor, root, **options)

    def counting_batch(ops: list[Any]) -> Any:
        counted[0] += bytes_of([op.tensor for op in ops if op.op is dist.isend])
        return batch(ops)

    dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv = (
        counting_all_to_all,
        counting_broadcast,
        counting_batch,
    )


def check(world: World, placement: Placement, exchange: str) -> None:
    given = problem(seed=world.size, features=40)
    parts = uneven(37, placement.parts)
    own = held(given, placement, parts)[world.rank]
    trainer = Trainer(own, world, exchange=EXCHANGES[exchange], optimizer=SGD(lr=0.5), shape=GCN(3, 4), dtype="float64")
    counted[0] = 0
    loss = trainer.gradients()
    weights = [layer.weight.detach().numpy() for layer in trainer.layers]
    found = [trainer.state.whole(trainer.state.gradient, layer.weight).numpy() for layer in trainer.layers]
    true, gradients, _, _ = dense(given, weights)
    assert abs(loss - true) < 1e-12
    for ours, theirs in zip(found, gradients, strict=True):
        assert np.abs(ours - theirs).max() < 1e-12, (placement, exchange)
    forward, backward = plans(given.operator, parts, placement)
    rows = [
        int((plan.volumes.oblivious() if exchange == "oblivious" else plan.volumes).send[world.rank])
        for plan in (forward, backward)
    ]
    wanted = sum(8 * one.width * rows[one.backward] for one in trainer.shape.products(40, 3))
    assert counted[0] == trainer.sent == wanted, (counted, trainer.sent, wanted, placement, exchange)
    trainer.epoch()
    _, ours = trainer.memory()
    paired = placement.replication == 2 and world.backend == "mpi"
    foretold = predicted(
        own, trainer.shape, form=exchange.replace("overlapped", "fused"), width=8, moments=1, paired=paired
    )
    assert {**ours, "activations": 0} == {**foretold, "activations": 0}, (ours, foretold)
    few = 512  # bytes of numbers that no size counts: losses, counts
    if placement.replication > 1:  # gloo's own thread lets go of a sum a little after it is done
        few += own.forward.rows * 4 * 8
    assert abs(ours["activations"] - foretold["activations"]) <= few, (ours, foretold, placement, exchange)


def main() -> None:
    world = here()
    count()
    checked = 0
    for replication in range(1, world.size + 1):
        if world.size % replication == 0:
            for exchange in EXCHANGES:
                check(world, Placement.of(world.size, replication), exchange)
                checked += 1
    world.close()
    if world.rank == 0:
        print(f"{checked} epochs")


if __name__ == "__main__":
    main()
