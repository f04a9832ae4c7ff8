"""Probes for the paper's claims on a whole training: a small graph in float64, on threads.

Exchanges are named by their class paths in the executor's config, as systems name theirs. Torch is imported for these
answers alone. The graph, its parts, optimizer and rate are ours (G15): what counts is that systems agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.config.locate import locate
from suite.config.results import mismatch
from suite.core.errors import InvalidRequest
from suite.data.graphs import operator
from suite.data.graphs.generate import Planted
from suite.gnn.local_block import LocalBlock
from suite.gnn.partition import partition
from suite.gnn.partition.simple import Random
from suite.gnn.plan import ExchangePlan, Placement
from suite.gnn.rank_shard import build_plans, build_shards
from suite.papers.common.answer import Cases, Question
from suite.papers.sparse_gnn.cluster_runs import GraphLab
from suite.workload.gcn import GCN

GRAPH = Planted(vertices=128, blocks=8, classes=4, features=12)
GRIDS = ((4, 1), (4, 2))  # processes and c: 1D and 1.5D
EPOCHS, RATE = 10, 0.02
VALUE = 8  # bytes
ZEROS = 1e-300  # zero entries of a product are compared absolutely


class Counting:
    """A group of ranks that counts the bytes its rank hands to it, whatever for."""

    def __init__(self, group: Any, rank: int) -> None:
        self.group, self.ranks, self.own = group, group.ranks, rank
        self.sent = 0

    def all_reduce(self, tensor: Any, op: str = "sum") -> Any:
        self.sent += tensor.numel() * tensor.element_size() if len(self.ranks) > 1 else 0
        return self.group.all_reduce(tensor, op)

    def broadcast(self, tensor: Any, root: int) -> Any:
        others = len(self.ranks) - 1 if root == self.own else 0
        self.sent += others * tensor.numel() * tensor.element_size()
        return self.group.broadcast(tensor, root)

    def all_to_all(self, recv_buffer: Any, send_buffer: Any, **counts: Any) -> Any:
        self.sent += send_buffer.numel() * send_buffer.element_size()
        return self.group.all_to_all(recv_buffer, send_buffer, **counts)

    def pairwise(self, sends: Any, receives: Any) -> Any:
        self.sent += sum(tensor.numel() * tensor.element_size() for _, tensor in sends)
        return self.group.pairwise(sends, receives)


@dataclass(frozen=True)
class ProbeTraining:
    """Of one system on one grid.

    Attributes:
        epochs: loss, and percent right, of each.
        extra: Bytes that are handed to messages beside rows of sparse products, their sums over replicas, and sums of
            loss and weight gradients.
    """

    epochs: tuple[tuple[float, float], ...]
    extra: int


@cache
def trained(exchange: str, processes: int, replication: int, form: str = "") -> ProbeTraining:
    """`exchange`: a class path; form: of its calls, empty for its own."""
    from suite.comm.p2p.threads import LoopbackWorld, run
    from suite.engine.optim.optimizer import Adam
    from suite.gnn.exchange import Exchange
    from suite.gnn.train import Trainer

    kind = locate(exchange)
    if reason := mismatch(kind, Exchange):
        raise InvalidRequest(
            f"exchange={exchange}", rule=f"its place requires {reason}", legal="suite.gnn.exchange.Aware"
        )
    graph = GRAPH.load(0)
    assert graph.features is not None
    assert graph.labels is not None
    matrix, placement = operator(graph), Placement.of(processes, replication)
    parts = partition(Random(), matrix, placement.parts, seed=0, folder=None).parts
    forward, backward = build_plans(matrix, parts, placement)
    masks = {"train": graph.train, "validation": graph.validation, "test": graph.test}
    data = partial(build_shards, features=graph.features, labels=graph.labels, classes=graph.classes)
    everyone = list(data(forward, backward, masks=masks, dtype="float64"))
    shape = GCN()

    def main(world: LoopbackWorld) -> tuple[list[tuple[float, float]], int]:
        groups: dict[tuple[int, ...], Counting] = {}
        plain = world.group

        def counting(ranks: Any) -> Any:
            return groups.setdefault(tuple(ranks), Counting(plain(ranks), world.rank))

        world.group = counting  # type: ignore[method-assign]
        kind_of_exchange = partial(kind, form=form) if form else kind
        trainer = Trainer(
            everyone[world.rank], world, exchange=kind_of_exchange, optimizer=Adam(RATE), shape=shape, dtype="float64"
        )
        losses = []
        for _ in range(EPOCHS):
            loss = trainer.epoch()
            sent = {ranks: group.sent for ranks, group in groups.items()}
            losses.append((loss, trainer.score("validation")["top_1"]))
            for ranks, group in groups.items():
                group.sent = sent[ranks]  # scoring is no training
        return losses, sum(group.sent for group in groups.values())

    outcomes = run(processes, main, deadline=120)
    moved = forward.volumes.oblivious() if kind.oblivious else forward.volumes
    width = sum(one.width for one in shape.products(graph.features.shape[1], graph.classes))
    sums = width * int(moved.all_reduce_rows.sum())  # over replicas, of what each process brings
    reduced = processes * (shape.parameters(graph.features.shape[1], graph.classes) + 1) if placement.parts > 1 else 0
    extra = sum(sent for _, sent in outcomes) - EPOCHS * VALUE * (width * moved.total + sums + reduced)
    return ProbeTraining(tuple(outcomes[0][0]), extra)


def _of(lab: GraphLab, system: str, grid: tuple[int, int], form: str = "") -> ProbeTraining:
    return trained(lab.exchanges[system], *grid, form)


def accuracy(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """The sparsity-aware exchange in one call, and in stages as Algorithm 2 prints it."""
    cases = []
    first, second = question.terms
    for grid in GRIDS:
        for form in ("fused", "staged"):
            both = [_of(lab, first, grid).epochs, _of(lab, second, grid, form).epochs]
            for epoch in range(EPOCHS):
                cases += [[each[epoch][what] for each in both] for what in (0, 1)]
    return cases, (
        f"loss and validation accuracy of {EPOCHS} epochs on a planted partition, 1D and 1.5D on 4 processes, fused "
        f"and staged"
    )


def activation(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    return [
        [_of(lab, s, grid).extra] for s in lab.exchanges for grid in GRIDS
    ], "sent beside the rows of sparse products"


def replicated_once(question: Question, lab: GraphLab) -> tuple[Cases, str]:
    """1D by Algorithm 1, on the rows that a whole matrix's columns name; 1.5D by the blocks of its plan, summed."""
    rng = np.random.default_rng(0)
    matrix = operator(GRAPH.load(0))
    x = rng.standard_normal((matrix.shape[0], 3))
    plan = ExchangePlan.build(matrix, Random().parts(matrix, 4, 0), Placement.of(4, 1))
    ours, sent = on_grid(plan, x[plan.order])
    theirs, theirs_sent = in_one_dimension(plan.matrix, plan.offsets, x[plan.order])
    pairs = zip(theirs.ravel(), ours.ravel(), strict=True)
    return [*([a or ZEROS, b or ZEROS] for a, b in pairs), *([theirs_sent[i], sent[i]] for i in range(4))], "bytes last"


def on_grid(plan: ExchangePlan, x: Any) -> tuple[Any, list[int]]:
    """A x by the blocks that each process of the plan's grid multiplies, and bytes that each sends."""
    z = np.zeros((plan.vertices, x.shape[1]))
    sent = []
    for rank in range(plan.placement.processes):
        block = LocalBlock.from_plan(plan, rank)
        own_rows = slice(plan.offsets[block.row], plan.offsets[block.row + 1])
        for q in plan.placement.stages(rank):
            z[own_rows] += block.full_width(q) @ x[plan.offsets[q] : plan.offsets[q + 1]]
        sent.append(int(block.send_counts.sum()) * x.shape[1] * VALUE)
    return z, sent


def in_one_dimension(matrix: csr_array, offsets: Any, x: Any) -> tuple[Any, list[int]]:
    """Algorithm 1 without a plan: every process takes the rows of x that its block row's columns name."""
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
