"""Predicted bytes of a process equal its allocated bytes.

On threads, copies made by messages are counted too; for real messages see tests/distributed/test_graphs.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from suite.data.graphs import Graph
from suite.engine.optim.optimizer import Adam
from suite.gnn.memory import predict_memory
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans, build_shards
from suite.workload.gcn import GCN
from tests.support.drawn import cells
from tests.support.graphs import on_trainers, problem


@pytest.mark.parametrize(
    ("exchange", "order", "epoch"), cells(["fused", "oblivious"], ["paper", "auto"], ["paper", "lean"], n=2)
)
def test_predicted_bytes_equal_allocated_bytes(exchange: str, order: str, epoch: str) -> None:
    """Law 4 for full graphs, on a directed graph whose features are much wider than its layers."""
    graph, shape = problem(800, density=0.008, features=60, seed=5), GCN(3, 16, order, epoch)

    def both(trainer, shard):  # type: ignore[no-untyped-def]
        trainer.epoch()
        return trainer.memory()[1], predict_memory(shard, shape, form=exchange, width=8)

    settings = {"exchange": exchange, "optimizer": Adam(lr=0.01), "shape": shape}
    ((allocated, predicted),) = on_trainers(graph, Placement(1), np.zeros(800, int), both, **settings)
    assert allocated == {**predicted, "activations": pytest.approx(predicted["activations"], abs=64)}


@pytest.mark.parametrize("processes", [4, 16])
def test_memory_depends_on_own_rows_and_halo_only(processes: int) -> None:
    """A ring with 64 vertices per part: every part needs two rows of others, whatever the number of processes."""
    n = 64 * processes
    v = np.arange(n)
    ring = csr_array((np.ones(2 * n), (np.tile(v, 2), np.concatenate([(v + 1) % n, (v - 1) % n]))), shape=(n, n))
    parts = {name: v % 3 == number for number, name in enumerate(("train", "validation", "test"))}
    graph = Graph("ring", ring, np.ones((n, 8), np.float32), v % 2, 2, **parts)
    shards = [*build_shards(*build_plans(ring, v // 64, Placement(processes)), graph)]
    totals = [sum(predict_memory(shard, GCN(), form="fused", width=4).values()) for shard in shards]
    assert max(totals) - min(totals) <= 64 * 8
    assert totals[0] == pytest.approx(29_100, rel=0.02)
    here, there = (predict_memory(shards[0], GCN(), form="fused", width=4, device=d)["graph"] for d in ("cpu", "cuda"))
    block = shards[0].forward
    assert here - there == 4 * (block.matrix.nnz + 2 * (block.rows + 1)), "32-bit indices"
