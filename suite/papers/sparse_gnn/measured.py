"""Probes for the paper's claims on full training: a small graph in float64, on threads.

Exchanges are named by class paths in the executor's config, as in system configs. Graph, partition, optimizer and
learning rate are our choice (G15), as the claims compare systems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.claims.answer import Cases, Question
from suite.comm.p2p.threads import LoopbackWorld, run
from suite.config.locate import locate
from suite.config.plugins import misfit
from suite.core.errors import InvalidRequest
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.engine.optim.optimizer import Adam
from suite.gnn.exchange import Exchange
from suite.gnn.partition import Partitioner
from suite.gnn.partition.simple import Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import RankShard, build_plans, build_shards
from suite.gnn.train import Trainer
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.papers.sparse_gnn.measured_watch import Traffic, watch_groups
from suite.workload.gcn import GCN

RANDOM = Random()
GRAPH = Planted(vertices=128, blocks=8, classes=4, features=12)
GRIDS = ((4, 1), (4, 2))  # processes and c: 1D and 1.5D
EPOCHS, RATE = 10, 0.02
VALUE = 8  # bytes
ZEROS = 1e-300  # stands for zero entries of a product, so that relative differences are defined


@dataclass(frozen=True)
class ProbeTraining:
    """Training of one system on one grid.

    Attributes:
        epochs: Loss and validation accuracy in percent, per epoch.
        extra_bytes: Bytes sent in addition to rows of sparse products, sums over replicas, and sums of the loss and
            the weight gradients.
    """

    epochs: tuple[tuple[float, float], ...]
    extra_bytes: int


def bytes_sent(traffic: Traffic) -> int:
    """Bytes of messages, and of the inputs of sums over more than one rank."""
    return traffic.bytes + VALUE * sum(words for ranks, words, _ in traffic.sums if len(ranks) > 1)


def shards_of(
    graph: Any,
    placement: Placement,
    *,
    classes: int = 0,
    dtype: str = "float64",
    partitioner: Partitioner = RANDOM,
) -> tuple[ExchangePlan, list[RankShard]]:
    """Plan of the forward products on a graph, and the part of each rank; by default on a random partition."""
    matrix = operator(graph)
    forward, backward = build_plans(matrix, partitioner.parts(matrix, placement.parts, 0), placement)
    labelled = replace(graph, classes=classes) if classes else graph
    return forward, list(build_shards(forward, backward, labelled, dtype))


@cache
def train_on_threads(exchange: str, processes: int, replication: int, form: str = "") -> ProbeTraining:
    """Train GRAPH for EPOCHS epochs by the exchange of a class path. An empty `form` selects the exchange's default.

    Raises:
        InvalidRequest: The class is no exchange.
    """
    exchange_class = locate(exchange)
    if reason := misfit(exchange_class, [Exchange]):
        raise InvalidRequest(
            f"exchange={exchange}", rule=f"its place requires {reason}", legal="suite.gnn.exchange.Aware"
        )
    graph, placement, shape = GRAPH.load(0), Placement.of(processes, replication), GCN()
    forward, shards = shards_of(graph, placement)
    make_exchange = partial(exchange_class, form=form) if form else exchange_class

    def main(world: LoopbackWorld) -> tuple[list[tuple[float, float]], int]:
        traffic, rule = watch_groups(world), Adam(RATE)
        shard = shards[world.rank]
        trainer = Trainer(shard, world, exchange=make_exchange, optimizer=rule, shape=shape, dtype="float64")
        epochs, training_bytes = [], 0
        for _ in range(EPOCHS):
            before = bytes_sent(traffic)
            loss = trainer.epoch()
            training_bytes += bytes_sent(traffic) - before  # without the messages of the validation
            epochs.append((loss, trainer.score("validation")["top_1"]))
        return epochs, training_bytes

    outcomes = run(processes, main)
    volumes = forward.volumes.oblivious() if exchange_class.oblivious else forward.volumes
    width = sum(product.width for product in shape.products(GRAPH.features, graph.classes))
    replica_sums = width * int(volumes.all_reduce_rows.sum())
    gradient_sums = 0
    if placement.parts > 1:
        gradient_sums = processes * (shape.parameters(GRAPH.features, graph.classes) + 1)  # and the loss
    planned = EPOCHS * VALUE * (width * volumes.total + replica_sums + gradient_sums)
    return ProbeTraining(tuple(outcomes[0][0]), sum(sent for _, sent in outcomes) - planned)


def _training(lab: GraphLab, system: str, grid: tuple[int, int], form: str = "") -> ProbeTraining:
    return train_on_threads(lab.exchanges[system], *grid, form)


def accuracy(question: Question, lab: GraphLab) -> Cases:
    """Loss and validation accuracy of ten epochs on a planted partition, 1D and 1.5D on four processes.

    The sparsity-aware exchange is fused, then staged.
    """
    cases = []
    first, second = question.terms
    for grid in GRIDS:
        for form in ("fused", "staged"):
            trainings = [_training(lab, first, grid).epochs, _training(lab, second, grid, form).epochs]
            for epoch in range(EPOCHS):
                cases += [[training[epoch][measure] for training in trainings] for measure in (0, 1)]
    return cases


def activation(question: Question, lab: GraphLab) -> Cases:
    """Bytes sent in addition to sparse products and sums."""
    return [[_training(lab, system, grid).extra_bytes] for system in lab.exchanges for grid in GRIDS]


def multiply_in_1d(matrix: csr_array, offsets: Any, x: Any) -> tuple[Any, list[int]]:
    """A x and the bytes that each process sends, by Algorithm 1 without a plan.

    Every process reads the rows of x in the nonzero columns of its block row.
    """
    k = len(offsets) - 1
    z, sent = np.zeros((matrix.shape[0], x.shape[1])), [0] * k
    for i in range(k):
        rows = csr_array(matrix[offsets[i] : offsets[i + 1]])
        needed = np.unique(rows.indices)
        z[offsets[i] : offsets[i + 1]] = rows[:, needed] @ x[needed]
        for q in range(k):
            count = int(np.count_nonzero((needed >= offsets[q]) & (needed < offsets[q + 1])))
            sent[q] += count * x.shape[1] * VALUE if q != i else 0
    return z, sent
