"""Distributed epochs over MPI and gloo equal the dense epoch and send the bytes of the plan.

Bytes are counted at the calls of torch.distributed, independently of the exchange's own count.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from suite.core.protocols import World
from suite.core.record import Outcome
from suite.engine.optim.optimizer import SGD
from suite.gnn.memory import predict_memory
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans
from suite.gnn.train import Trainer
from suite.runner.interleave import measure
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.workload.gcn import GCN
from tests.support.graphs import EXCHANGES, dense, problem, shards_of, uneven
from tests.support.ranks import on_ranks

COUNTED = [0]  # bytes sent by this rank


@contextmanager
def count_sent_bytes() -> Iterator[None]:
    """Patch torch.distributed to add the bytes that this rank sends to `COUNTED`."""
    all_to_all, broadcast, batch = dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv

    def counting_all_to_all(output: Any, outgoing: Any, *rest: Any, **options: Any) -> Any:
        COUNTED[0] += outgoing.nbytes
        return all_to_all(output, outgoing, *rest, **options)

    def counting_broadcast(tensor: Any, root: int, **options: Any) -> Any:
        if root == dist.get_rank():
            COUNTED[0] += tensor.nbytes * (dist.get_world_size(options["group"]) - 1)
        return broadcast(tensor, root, **options)

    def counting_batch(ops: list[Any]) -> Any:
        COUNTED[0] += sum(op.tensor.nbytes for op in ops if op.op is dist.isend)
        return batch(ops)

    dist.all_to_all_single, dist.broadcast = counting_all_to_all, counting_broadcast
    dist.batch_isend_irecv = counting_batch
    yield
    dist.all_to_all_single, dist.broadcast, dist.batch_isend_irecv = all_to_all, broadcast, batch


def check_epoch(world: World, placement: Placement, exchange: str) -> None:
    """Compare an epoch of a directed graph with the dense one, and its bytes with the plan and with torch's calls."""
    graph = problem(seed=world.size, features=40)
    parts = uneven(37, placement.parts)
    shard, shape = shards_of(graph, placement, parts)[world.rank], GCN(3, 4)
    trainer = Trainer(shard, world, exchange=EXCHANGES[exchange], optimizer=SGD(lr=0.5), shape=shape, dtype="float64")
    COUNTED[0] = 0
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
    assert COUNTED[0] == trainer.sent == planned, (COUNTED, trainer.sent, planned, placement, exchange)
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


def check_epochs(world: World) -> None:
    with count_sent_bytes():
        for replication in range(1, world.size + 1):
            if world.size % replication == 0:
                for exchange in EXCHANGES:
                    check_epoch(world, Placement.of(world.size, replication), exchange)


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher"), [(2, ""), pytest.param(6, "torchrun", marks=pytest.mark.exhaustive)])
def test_every_grid_and_exchange_runs_on_ranks(ranks: int, launcher: str) -> None:
    on_ranks(ranks, check_epochs, launcher=launcher)


@pytest.mark.slow("a whole run of a graph on two ranks")
@pytest.mark.ranks
def test_measured_run_matches_planned_bytes_and_predicted_memory(tmp_path: Path) -> None:
    overrides = ["system=sparsity_aware", "partitioner=metis", "grid.data=2", "graph.source.vertices=2048"]
    runs = expand([*overrides, "measure.rounds=2", f"reports={tmp_path}"])
    (record,) = measure(runs, Progress(1.0, io.StringIO()))
    assert (record.outcome, record.reason) == (Outcome.OK, "")
    planned = record.metrics["planned_bytes"].values[0]
    assert planned > 0
    assert set(record.metrics["exchanged_bytes"].values) == {planned}
    for rank in (0, 1):
        measured, predicted = (
            sum(kind[rank] for kind in record.memory[side].values()) for side in ("measured", "predicted")
        )
        assert measured == pytest.approx(predicted, rel=0.05)
    assert record.metrics["top_1"].values[0] > 50  # percent, of eight learnable labels
    assert record.series["loss"][-1] < record.series["loss"][0]
    assert {"time_gather", "time_exchange", "time_product", "time_gemm", "time_reduce"} < record.metrics.keys()
    assert record.provenance["data"]["vertices"] == 2048
    assert not list(tmp_path.glob("**/rank-*.npz"))
