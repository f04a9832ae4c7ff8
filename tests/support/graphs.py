"""Graphs, partitions and the dense oracle for the laws of full-graph training."""

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
from suite.gnn.rank_shard import RankShard, holdings, plans
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
    """A weighted graph with features (n, f), labels (n,) and a training mask (n,)."""

    operator: csr_array
    features: np.ndarray
    labels: np.ndarray
    masks: dict[str, np.ndarray]
    classes: int


def problem(
    n: int = 37, *, seed: int = 0, symmetric: bool = False, density: float = 0.12, features: int = 5
) -> Problem:
    """A random directed graph, some vertices without edges."""
    rng = np.random.default_rng(seed)
    matrix = csr_array(random_array((n, n), density=density, rng=rng, format="csr"))
    matrix = csr_array(matrix + matrix.T) if symmetric else matrix
    lone = np.ones(n)
    lone[rng.choice(n, n // 8, replace=False)] = 0
    matrix = csr_array(matrix.multiply(lone[:, None]).multiply(lone[None, :]).tocsr())
    matrix.eliminate_zeros()
    where = rng.integers(0, 4, n)
    where[0] = 0
    masks = {name: where == at for at, name in enumerate(("train", "validation", "test"))}
    return Problem(matrix, rng.standard_normal((n, features)), rng.integers(0, 3, n), masks, 3)


def uneven(n: int, k: int, seed: int = 1) -> np.ndarray:
    """Parts of very different sizes, the last one empty where there are more than two."""
    rng = np.random.default_rng(seed)
    weights = np.arange(k, 0, -1.0)
    if k > 2:
        weights[-1] = 0
    return rng.choice(k, n, p=weights / weights.sum())


def held(given: Problem, placement: Placement, parts: np.ndarray) -> list[RankShard]:
    forward, backward = plans(given.operator, parts, placement)
    return list(
        holdings(
            forward,
            backward,
            features=given.features,
            labels=given.labels,
            masks=given.masks,
            classes=given.classes,
            dtype="float64",
        )
    )


def trainers(
    given: Problem, placement: Placement, parts: np.ndarray, then: Any, *, exchange: str = "fused", **options: Any
) -> list[Any]:
    """then(trainer, holding) of every rank, on threads."""
    everyone = held(given, placement, parts)

    def main(world: LoopbackWorld) -> Any:
        own = everyone[world.rank]
        settings = {"shape": GCN(3, 4), "optimizer": SGD(lr=0.5), "dtype": "float64", **options}
        return then(Trainer(own, world, exchange=EXCHANGES[exchange], **settings), own)

    return run(placement.processes, main, deadline=60)


def dense(
    given: Problem, weights: Sequence[np.ndarray]
) -> tuple[float, list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Loss, dW of each layer, Z of each layer and dH^0, by Section 2.1 on whole dense matrices."""
    a, h = given.operator.toarray(), given.features
    inputs, outputs = [], []
    for weight in weights:
        inputs.append(h)
        outputs.append(a.T @ h @ weight)
        h = np.maximum(outputs[-1], 0)
    z, rows = outputs[-1], np.flatnonzero(given.masks["train"])
    shifted = z - z.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chances = np.exp(logarithms)
    loss = -logarithms[rows, given.labels[rows]].mean()
    g = np.zeros_like(z)
    g[rows] = chances[rows]
    g[rows, given.labels[rows]] -= 1
    g /= len(rows)
    gradients: list[np.ndarray] = []
    for at in reversed(range(len(weights))):
        gradients.insert(0, inputs[at].T @ (a @ g))
        g = (a @ g) @ weights[at].T
        if at:
            g = g * (outputs[at - 1] > 0)
    return float(loss), gradients, outputs, g
