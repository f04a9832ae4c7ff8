"""Preparation of a full-graph run in the parent: graph, partition, plan, and the shard of each rank.

A graph is partitioned once (Section 6.3.1). The ranks read separate files, so no rank ever holds the whole graph."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from time import perf_counter

import numpy as np
from scipy.sparse import csr_array

from suite.config.locate import TARGET
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.keys import in_keys_of
from suite.core.record import Metric
from suite.data.graphs import Graph, operator
from suite.gnn.memory import predicted
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import ExchangePlan, Placement, Volumes, check_form
from suite.gnn.rank_shard import holdings, plans, symmetric, transposed
from suite.gnn.settings import exchange_settings, graph_settings, partitioner_settings, shape_of, ways
from suite.memory.optimizer_states import states_of
from suite.workload.gcn import GCN, check_order

CACHE = "cache"  # folder of a reports folder where partitions are kept
WIDTH = {"float32": 4, "float64": 8}  # bytes of a value


@lru_cache(maxsize=2)
def _graph(source: str, seed: int) -> tuple[Graph, csr_array, csr_array]:
    graph: Graph = build(json.loads(source)).load(seed)
    matrix = operator(graph)
    return graph, matrix, matrix if symmetric(matrix) else transposed(matrix)


def _made(config: RunConfig) -> tuple[Graph, csr_array, csr_array]:
    """A graph with its matrices; the last two are kept, as the runs of an experiment share them."""
    return _graph(json.dumps(graph_settings(config).source.data(), sort_keys=True), config.seed)


def graph_of(config: RunConfig) -> tuple[Graph, csr_array]:
    """A config's graph and its operator, the matrix of the backward product."""
    graph, matrix, _ = _made(config)
    return graph, matrix


def forward_of(config: RunConfig) -> csr_array:
    """The matrix of the forward product, A^T, which moves the wide features: what partitioners are asked about."""
    return _made(config)[2]


def placement_of(config: RunConfig) -> Placement:
    """P is the grid's data dimension. Raises InvalidRequest where the replication does not divide it."""
    exchange = exchange_settings(config)
    return Placement.of(config.grid.build().size, exchange.replication, exchange.assignment)


def partitioner_of(config: RunConfig) -> Partitioner:
    settings = partitioner_settings(config)
    with in_keys_of("partitioner", settings.more):
        partitioner: Partitioner = build({TARGET: settings.target, **settings.more})
    return partitioner


def partition_of(config: RunConfig, k: int) -> Partition:
    """A config's partition of its graph into k parts, for the forward product, kept in its reports folder."""
    folder = Path(config.reports) / CACHE / "partitions"
    return partition(partitioner_of(config), forward_of(config), k, seed=config.seed, folder=folder)


def check(config: RunConfig) -> None:
    """Raises InvalidRequest (or a subclass) for an impossible full-graph run. No graph is read for it."""
    system, grid, model = config.system, config.grid, config.model
    if not system.graphs:
        what = f"system={system.name} under executor={config.executor.name}"
        raise Unsupported(what, rule="it trains no whole graph", legal="system=sparsity_aware")
    for name, ranks in (("inter", grid.inter), ("tensor", grid.tensor)):
        if ranks != 1:
            what = f"grid.{name}={ranks} of system={system.name}"
            raise Unsupported(
                what,
                rule="processes share vertices and split no layers",
                legal=f"grid.data={ranks} without grid.{name}",
            )
    placement, exchange = placement_of(config), exchange_settings(config)
    partitioner_of(config)
    source = graph_settings(config).source
    with in_keys_of("graph.source", source.arguments):
        source.build()
    chosen = {"oblivious": exchange.oblivious, "overlap": exchange.overlap}
    check_form(exchange.form, assignment=placement.assignment, replication=placement.replication, **chosen)
    shape_of(model)
    check_order(*ways(model))
    if model.dtype not in WIDTH:
        raise Unsupported(f"model.dtype={model.dtype}", rule="of sparse products", legal="model.dtype=float32")
    optimizer = config.optimizer
    choices = {
        "precision.half": config.precision.half,
        "pruning.ticket": config.pruning.ticket,
        "activation_checkpointing": config.activation_checkpointing,
        "checkpoint.folder": config.checkpoint.folder,
        "update_interval": config.update_interval,
        "optimizer.clip_norm": optimizer.clip_norm,
        "optimizer.buckets_per_reduction": optimizer.buckets_per_reduction,
    }
    for name, value in choices.items():
        if value is not None:
            what = f"{name}={value} of system={system.name}"
            raise Unsupported(what, rule="full-graph training has it not", legal=f"{name}=null")


class Prepared:
    """Prepared data of one run, whose ranks read `folder`/rank-R.npz.

    Attributes:
        metrics: Volumes and partition.
        memory: Predicted bytes by kind, per rank.
        provenance: Of the graph; notes.
    """

    check = staticmethod(check)

    def __init__(self, config: RunConfig, folder: Path) -> None:
        graph, matrix = graph_of(config)
        if graph.features is None or graph.labels is None:
            missing = "features" if graph.features is None else "labels"
            raise InvalidRequest(
                f"graph={graph_settings(config).name} has no {missing}",
                rule="a source that reads them, or draws them",
                legal="graph.source.features=300 graph.source.classes=24",
            )
        placement = placement_of(config)
        self.partition = partition_of(config, placement.parts)
        begin = perf_counter()
        forward, backward = plans(matrix, self.partition.parts, placement)
        self.seconds = perf_counter() - begin
        model, exchange = config.model, exchange_settings(config)
        shape, (order, epoch) = shape_of(model), ways(model)
        form = "oblivious" if exchange.oblivious else exchange.form
        sizes = (int(graph.features.shape[1]), int(graph.classes))
        masks = {"train": graph.train, "validation": graph.validation, "test": graph.test}
        folder.mkdir(parents=True, exist_ok=True)
        kinds, width = [], WIDTH[model.dtype]
        # two ranks add by an exchange, for which each has room for the other's part
        paired = placement.replication == 2 and config.pair_exchange
        moments = len(states_of(config.optimizer.target, config.optimizer.arguments, predicts=False))
        for shard in holdings(
            forward,
            backward,
            features=graph.features,
            labels=graph.labels,
            masks=masks,
            classes=graph.classes,
            dtype=model.dtype,
        ):
            shard.save(folder / f"rank-{shard.forward.rank}.npz")
            kinds.append(
                predicted(
                    shard, shape, form=form, width=width, moments=moments, paired=paired, order=order, epoch=epoch
                )
            )
        self.memory = {kind: [rank[kind] for rank in kinds] for kind in kinds[0]}
        flops = shape.flops(*sizes, vertices=graph.vertices, entries=int(matrix.nnz), order=order, epoch=epoch)
        self.metrics = {
            **volume_metrics(
                forward, backward, shape, sizes, oblivious=exchange.oblivious, width=width, order=order, epoch=epoch
            ),
            "flops_per_batch": Metric("flop", "", (float(flops),)),
            "partition_time": Metric(
                "s", "lower", (self.partition.seconds,), "kept from before" * self.partition.cached
            ),
            "plan_time": Metric("s", "lower", (self.seconds,)),
        }
        quality = {f"partition_{name}": value for name, value in asdict(self.partition.quality).items()}
        self.metrics |= {
            name: Metric("percent" if "imbalance" in name else "row", "lower", (float(value),))
            for name, value in quality.items()
        }
        drawn = [f"random {' and '.join(graph.random)}: nothing to learn from them"] if graph.random else []
        self.notes = (*drawn, *graph.notes, *self.partition.notes)
        self.provenance = {
            "name": graph.name,
            "vertices": graph.vertices,
            "edges": graph.edges,
            "hash": graph.hash,
            "symmetric": graph.symmetric,
            "random": list(graph.random),
        }


def volume_metrics(
    forward: ExchangePlan,
    backward: ExchangePlan,
    shape: GCN,
    sizes: tuple[int, int],
    *,
    oblivious: bool,
    width: int,
    order: str = "paper",
    epoch: str = "paper",
) -> dict[str, Metric]:
    """Rows of one forward product, and bytes of an epoch, that a plan says are sent."""
    both = [plan.volumes.oblivious() if oblivious else plan.volumes for plan in (forward, backward)]
    ahead, _ = both
    sent = np.zeros(forward.placement.processes)
    for one in shape.products(*sizes, order=order, epoch=epoch):
        sent += width * one.width * both[one.backward].send
    return moved_metrics(ahead, float(sent.sum()))


def moved_metrics(product: Volumes, epoch: float) -> dict[str, Metric]:
    """Rows of one forward product, and the bytes that all processes send in an epoch."""

    def rows(value: float, note: str = "") -> Metric:
        return Metric("row", "lower", (float(value),), note)

    return {
        "rows_sent": rows(product.total, "of one product, by all processes"),
        "max_send": rows(product.send.max()),
        "max_receive": rows(product.receive.max()),
        "send_imbalance": Metric("percent", "lower", (product.imbalance,), "of the busiest sender over the mean"),
        "planned_bytes": Metric("B", "lower", (epoch,), "an epoch, by all processes"),
    }
