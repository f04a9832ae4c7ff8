"""Preparation of a full-graph run in the parent process: graph, partition, plan, and the shard of each rank.

A graph is partitioned once (Section 6.3.1). Each rank reads its own file, so no rank holds the whole graph."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from time import monotonic

import numpy as np
from scipy.sparse import csr_array

from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.errors import Unsupported, refuse
from suite.core.record import Metric
from suite.data.graphs import Graph, operator
from suite.gnn.memory import predict_memory
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import Placement
from suite.gnn.rank_shard import build_plans, build_shards, is_symmetric, sorted_transpose
from suite.gnn.settings import required, shape_of
from suite.memory.optimizer_states import states_of
from suite.simulate.full_graph import FullGraph

CACHE = "cache"  # subfolder of the reports folder that keeps partitions
WIDTH = {"float32": 4, "float64": 8}  # bytes of a value


@lru_cache(maxsize=2)  # runs of an experiment share their graphs
def _load_graph(source: str, seed: int) -> tuple[Graph, csr_array, csr_array]:
    graph: Graph = build(json.loads(source)).load(seed)
    matrix = operator(graph)
    return graph, matrix, matrix if is_symmetric(matrix) else sorted_transpose(matrix)


def graph_of(config: RunConfig) -> tuple[Graph, csr_array, csr_array]:
    """The configured graph, its operator A, which the backward product multiplies by, and A^T for the forward product.

    Partitioners get A^T because it moves the wide features.
    """
    return _load_graph(json.dumps(required(config.graph).source.data(), sort_keys=True), config.seed)


def placement_of(config: RunConfig) -> Placement:
    """The process grid, with P = grid.data. Raises InvalidRequest where the replication does not divide P."""
    exchange = required(config.exchange)
    return Placement.of(config.grid.build().size, exchange.replication, exchange.assignment)


def partitioner_of(config: RunConfig) -> Partitioner:
    partitioner: Partitioner = required(config.partitioner).build()
    return partitioner


def partition_of(config: RunConfig, k: int) -> Partition:
    """The configured partition into k parts, for the forward product, cached in the reports folder."""
    folder = Path(config.reports) / CACHE / "partitions"
    return partition(partitioner_of(config), graph_of(config)[2], k, seed=config.seed, folder=folder)


def validate_run(config: RunConfig) -> None:
    """Raises InvalidRequest (or a subclass) for an impossible full-graph run, without reading a graph."""
    system, grid, model = config.system, config.grid, config.model
    named = f"{system.command} under executor={config.executor.name}"
    key, size = ("inter", grid.inter) if grid.inter > 1 else ("tensor", grid.tensor)
    what, legal = f"grid.{key}={size} of {system.command}", f"grid.data={size} without grid.{key}"
    dtype, types = f"model.dtype={model.dtype}", "sparse products run in float32 or float64"
    refuse(
        [
            (not system.graphs, named, "a system that trains whole graphs", "system=sparsity_aware"),
            (size > 1, what, "full-graph training distributes vertices, not layers", legal),
            (model.dtype not in WIDTH, dtype, types, "model.dtype=float32"),
        ],
        Unsupported,
    )
    placement, exchange = placement_of(config), required(config.exchange)
    partitioner_of(config)
    form, whole = exchange.form, exchange.oblivious
    what, own = f"exchange.form={form}, exchange.overlap={exchange.overlap}", "of the oblivious exchange"
    staged, paper = "exchange.form=staged exchange.overlap=false", "exchange.assignment=paper"
    spread = f"exchange.assignment={placement.assignment}"
    column, alone = "a broadcast goes to a whole column of the grid", "only a single all-to-all overlaps"
    refuse(
        [
            (whole and (exchange.overlap or form != "staged"), f"{what} {own}", "CAGNET broadcasts in stages", staged),
            (whole and spread != paper and placement.replication > 1, f"{spread} {own}", column, paper),
            (exchange.overlap and form != "fused", what, alone, "exchange.form=fused"),
        ],
        Unsupported,
    )
    shape_of(model)


def features_and_classes(config: RunConfig, graph: Graph) -> tuple[int, int]:
    """Number of features and of classes. Raises InvalidRequest for a graph without either."""
    features, missing = graph.features, "features" if graph.features is None else "labels"
    what, legal = f"graph={required(config.graph).name} has no {missing}", "graph.source.features=300"
    refuse([(features is None or not graph.classes, what, "features and labels, read or drawn", legal)])
    assert features is not None
    return int(features.shape[1]), int(graph.classes)


class Prepared:
    """Prepared data of one run; rank R reads `folder`/rank-R.npz.

    Attributes:
        metrics: Communication volumes, partition quality and preparation times.
        memory: Predicted bytes by kind, one value per rank.
        provenance: Identity of the graph.
        notes: Remarks on the graph.
    """

    check = staticmethod(validate_run)

    def __init__(self, config: RunConfig, folder: Path) -> None:
        graph, matrix, _ = graph_of(config)
        sizes = features_and_classes(config, graph)
        placement = placement_of(config)
        self.partition = partition_of(config, placement.parts)
        begin = monotonic()
        forward, backward = build_plans(matrix, self.partition.parts, placement)
        plan_seconds = monotonic() - begin
        model, exchange = config.model, required(config.exchange)
        shape, form = shape_of(model), "oblivious" if exchange.oblivious else exchange.form
        folder.mkdir(parents=True, exist_ok=True)
        rank_memory, width = [], WIDTH[model.dtype]
        # two replicas sum by exchanging their products, which takes a receive buffer
        paired = placement.replication == 2 and config.pair_exchange
        moments = len(states_of(config.optimizer.target, config.optimizer.arguments, predicts=False))
        for shard in build_shards(forward, backward, graph, model.dtype):
            shard.save(folder / f"rank-{shard.forward.rank}.npz")
            rank_memory.append(
                predict_memory(
                    shard,
                    shape,
                    form=form,
                    width=width,
                    moments=moments,
                    paired=paired,
                    device=config.launch.device,
                )
            )
        self.memory = {kind: [by_kind[kind] for by_kind in rank_memory] for kind in rank_memory[0]}
        back = None if backward is forward else backward.volumes
        training = FullGraph(forward.volumes, shape, *sizes, form, back=back, value=width)
        flops = shape.flops(*sizes, vertices=graph.vertices, entries=int(matrix.nnz))
        self.metrics = {
            **volume_metrics(training),
            "flops_per_batch": Metric("flop", "", (float(flops),)),
            "partition_time": Metric("s", "lower", (self.partition.seconds,), "from the cache" * self.partition.cached),
            "plan_time": Metric("s", "lower", (plan_seconds,)),
        }
        self.metrics |= {
            f"partition_{name}": Metric("percent" if "imbalance" in name else "row", "lower", (value,))
            for name, value in self.partition.quality.items()
        }
        drawn = [f"random {' and '.join(graph.random)}: nothing can be learned from them"] if graph.random else []
        self.notes = (*drawn, *graph.notes)
        self.provenance = {
            "name": graph.name,
            "vertices": graph.vertices,
            "edges": graph.edges,
            "hash": graph.hash,
            "symmetric": graph.symmetric,
            "random": list(graph.random),
        }


def rows(value: float, note: str = "") -> Metric:
    """A number of rows."""
    return Metric("row", "lower", (float(value),), note)


def volume_metrics(training: FullGraph) -> dict[str, Metric]:
    """Rows of one forward product, and the bytes that all processes send in an epoch."""

    product, sent = training.moved, float(np.sum(training.sent()))
    return {
        "rows_sent": rows(product.total, "one product, all processes"),
        "max_send": rows(product.send.max()),
        "max_receive": rows(product.receive.max()),
        "send_imbalance": Metric("percent", "lower", (product.imbalance,), "busiest sender over the mean"),
        "planned_bytes": Metric("B", "lower", (sent,), "one epoch, all processes"),
    }
