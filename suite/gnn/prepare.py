"""Decides what the parent of a full-graph run makes before ranks start: graph, parts, plan, and each rank's own.

A graph is partitioned once (Section 6.3.1). The ranks read files of their own, so none of them ever holds the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.comm import by_exchange
from suite.core.build import build
from suite.core.errors import Refused, Unsupported
from suite.core.grid import Grid
from suite.core.record import Metric
from suite.data.graphs import Graph, operator
from suite.gnn.holding import holdings, plans, symmetric, transposed
from suite.gnn.memory import predicted
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import Placement, Plan, Volumes, check_form
from suite.memory.rule import states_of
from suite.workload.gcn import GCN, check_order

CACHE = "cache"  # folder of a reports folder where partitions are kept
WIDTH = {"float32": 4, "float64": 8}  # bytes of a value


@lru_cache(maxsize=2)
def _graph(source: str, seed: int) -> tuple[Graph, csr_array, csr_array]:
    graph: Graph = build(json.loads(source)).load(seed)
    matrix = operator(graph)
    return graph, matrix, matrix if symmetric(matrix) else transposed(matrix)


def _made(config: Mapping[str, Any]) -> tuple[Graph, csr_array, csr_array]:
    """A graph with its matrices; the last two are kept, as the runs of an experiment share them."""
    return _graph(json.dumps(config["graph"]["source"], sort_keys=True), config["seed"])


def graph_of(config: Mapping[str, Any]) -> tuple[Graph, csr_array]:
    """A config's graph and its operator, the matrix of the backward product."""
    graph, matrix, _ = _made(config)
    return graph, matrix


def forward_of(config: Mapping[str, Any]) -> csr_array:
    """The matrix of the forward product, A^T, which moves the wide features: what partitioners are asked about."""
    return _made(config)[2]


def placement_of(config: Mapping[str, Any]) -> Placement:
    """P is the grid's data dimension. Raises Refused where the replication does not divide it."""
    exchange = config["exchange"]
    return Placement.of(Grid(**config["grid"]).size, exchange["replication"], exchange["assignment"])


def partitioner_of(config: Mapping[str, Any]) -> Partitioner:
    made: Partitioner = build({key: value for key, value in config["partitioner"].items() if key != "name"})
    return made


def partition_of(config: Mapping[str, Any], k: int) -> Partition:
    """A config's partition of its graph into k parts, for the forward product, kept in its reports folder."""
    folder = Path(config["reports"]) / CACHE / "partitions"
    return partition(partitioner_of(config), forward_of(config), k, seed=config["seed"], folder=folder)


def check(config: Mapping[str, Any]) -> None:
    """Raises Refused (or a kind of it) for what no full-graph run can have. No graph is read for it."""
    system, grid, model = config["system"], config["grid"], config["model"]
    if not system.get("graphs"):
        what = f"system={system['name']} under executor={config['executor']['name']}"
        raise Unsupported(what, rule="it trains no whole graph", legal="system=sparsity_aware")
    for name in ("inter", "tensor"):
        if grid[name] != 1:
            what = f"grid.{name}={grid[name]} of system={system['name']}"
            raise Unsupported(what, rule="processes share vertices and split no layers", legal=f"grid.{name}=1")
    seed = config["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise Refused(f"seed={seed}", rule="a whole number, not negative", legal="seed=0")
    placement, exchange = placement_of(config), config["exchange"]
    given = {"oblivious": bool(exchange["oblivious"]), "overlap": exchange["overlap"]}
    check_form(exchange["form"], assignment=placement.assignment, replication=placement.replication, **given)
    shape = build(model["shape"])
    if not isinstance(shape, GCN):
        raise Unsupported(f"model={model['name']} on a whole graph", rule="graph convolutions", legal="model=gcn")
    check_order(model.get("order", "paper"), model.get("epoch", "paper"))
    if model["dtype"] not in WIDTH:
        raise Unsupported(f"model.dtype={model['dtype']}", rule="of sparse products", legal="model.dtype=float32")
    update = config["update"]
    asked = {
        "precision.half": config["precision"]["half"],
        "pruning.ticket": config["pruning"]["ticket"],
        "checkpoints": config["checkpoints"],
        "resume.folder": config["resume"]["folder"],
        **{f"update.{name}": update[name] for name in ("every", "clip", "chunk")},
    }
    for name, value in asked.items():
        if value is not None:
            what = f"{name}={value} of system={system['name']}"
            raise Unsupported(what, rule="full-graph training has it not", legal=f"{name}=null")


class Prepared:
    """What was made for one run, whose ranks read `folder`/rank-R.npz.

    metrics: volumes and partition; memory: predicted bytes by kind, per rank; provenance: of the graph; notes
    """

    check = staticmethod(check)

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        graph, matrix = graph_of(config)
        if graph.features is None or graph.labels is None:
            missing = "features" if graph.features is None else "labels"
            raise Refused(
                f"graph={config['graph']['name']} has no {missing}",
                rule="a source that reads them, or draws them",
                legal="graph.source.features=300 graph.source.classes=24",
            )
        placement = placement_of(config)
        self.partition = partition_of(config, placement.parts)
        begin = perf_counter()
        forward, backward = plans(matrix, self.partition.parts, placement)
        self.seconds = perf_counter() - begin
        shape: GCN = build(config["model"]["shape"])
        model, oblivious = config["model"], bool(config["exchange"]["oblivious"])
        form = "oblivious" if oblivious else str(config["exchange"]["form"])
        ways = {"order": model.get("order", "paper"), "epoch": model.get("epoch", "paper")}
        sizes = (int(graph.features.shape[1]), int(graph.classes))
        masks = {"train": graph.train, "validation": graph.validation, "test": graph.test}
        folder.mkdir(parents=True, exist_ok=True)
        kinds, width = [], WIDTH[model["dtype"]]
        # two ranks add by an exchange, for which each has room for the other's part
        paired = placement.replication == 2 and by_exchange(config["comm"], config["launch"])
        moments = len(states_of(config["optimizer"], predicts=False))
        for own in holdings(
            forward,
            backward,
            features=graph.features,
            labels=graph.labels,
            masks=masks,
            classes=graph.classes,
            dtype=model["dtype"],
        ):
            own.save(folder / f"rank-{own.forward.rank}.npz")
            kinds.append(predicted(own, shape, form=form, width=width, moments=moments, paired=paired, **ways))
        self.memory = {kind: [rank[kind] for rank in kinds] for kind in kinds[0]}
        flops = shape.flops(*sizes, vertices=graph.vertices, entries=int(matrix.nnz), **ways)
        self.metrics = {
            **volume_metrics(forward, backward, shape, sizes, oblivious=oblivious, width=width, **ways),
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
    forward: Plan,
    backward: Plan,
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
