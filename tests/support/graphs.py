"""Graphs, partitions and a dense reference for the laws of full-graph training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, random_array

from baselines.cagnet import Oblivious
from suite.comm.p2p.threads import LoopbackWorld, run
from suite.engine.optim.optimizer import SGD
from suite.gnn.exchange import Aware
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import RankShard, build_plans, build_shards
from suite.gnn.train import Trainer
from suite.workload.gcn import GCN

EXCHANGES = {
    "oblivious": Oblivious,
    "fused": Aware,
    "overlapped": partial(Aware, overlap=True),
    "staged": partial(Aware, form="staged"),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A weighted graph with features (n, f), labels (n,) and masks (n,)."""

    operator: csr_array
    features: np.ndarray
    labels: np.ndarray
    masks: dict[str, np.ndarray]
    classes: int


def problem(
    n: int = 37, *, seed: int = 0, symmetric: bool = False, density: float = 0.12, features: int = 5
) -> Problem:
    """A random graph, an eighth of whose vertices have no edges."""
    rng = np.random.default_rng(seed)
    matrix = csr_array(random_array((n, n), density=density, rng=rng, format="csr"))
    matrix = csr_array(matrix + matrix.T) if symmetric else matrix
    linked = np.ones(n)
    linked[rng.choice(n, n // 8, replace=False)] = 0
    matrix = csr_array(matrix.multiply(linked[:, None]).multiply(linked[None, :]).tocsr())
    matrix.eliminate_zeros()
    mask = rng.integers(0, 4, n)
    mask[0] = 0
    masks = {name: mask == number for number, name in enumerate(("train", "validation", "test"))}
    return Problem(matrix, rng.standard_normal((n, features)), rng.integers(0, 3, n), masks, 3)


def uneven(n: int, k: int, seed: int = 1) -> np.ndarray:
    """Parts of very different sizes; the last one is empty if there are more than two."""
    rng = np.random.default_rng(seed)
    weights = np.arange(k, 0, -1.0)
    if k > 2:
        weights[-1] = 0
    return rng.choice(k, n, p=weights / weights.sum())


def shards_of(graph: Problem, placement: Placement, parts: np.ndarray) -> list[RankShard]:
    """The shards of all ranks, in float64."""
    plans: Any = build_plans(graph.operator, parts, placement)
    return list(build_shards(*plans, graph, "float64"))


def on_trainers(
    graph: Problem, placement: Placement, parts: np.ndarray, function: Any, *, exchange: str = "fused", **options: Any
) -> list[Any]:
    """function(trainer, shard) of every rank, on threads."""
    shards = shards_of(graph, placement, parts)

    def main(world: LoopbackWorld) -> Any:
        shard = shards[world.rank]
        settings = {"shape": GCN(3, 4), "optimizer": SGD(lr=0.5), "dtype": "float64", **options}
        return function(Trainer(shard, world, exchange=EXCHANGES[exchange], **settings), shard)

    return run(placement.processes, main)


def dense(
    graph: Problem, weights: Sequence[np.ndarray]
) -> tuple[float, list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Loss, dW of each layer, Z of each layer and dH^0, by the equations of Section 2.1 on dense matrices."""
    a, h = graph.operator.toarray(), graph.features
    inputs, outputs = [], []
    for weight in weights:
        inputs.append(h)
        outputs.append(a.T @ h @ weight)
        h = np.maximum(outputs[-1], 0)
    z, rows = outputs[-1], np.flatnonzero(graph.masks["train"])
    shifted = z - z.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    softmax = np.exp(log_softmax)
    loss = -log_softmax[rows, graph.labels[rows]].mean()
    g = np.zeros_like(z)
    g[rows] = softmax[rows]
    g[rows, graph.labels[rows]] -= 1
    g /= len(rows)
    gradients: list[np.ndarray] = []
    for layer in reversed(range(len(weights))):
        gradients.insert(0, inputs[layer].T @ (a @ g))
        g = (a @ g) @ weights[layer].T
        if layer:
            g = g * (outputs[layer - 1] > 0)
    return float(loss), gradients, outputs, g
