"""Executor without ranks (executor=volumes): rows, bytes and memory from the plan, and a modelled epoch time.

No process is started, so the number of processes is unlimited. The record holds the rows that the configured exchange
sends on the configured graph and partition, the memory per process, and the epoch time on a modelled cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.config.run import RunConfig
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.gnn import partition_data
from suite.gnn.partition.simple import Random
from suite.gnn.partition_data import rows
from suite.gnn.plan import count_volumes
from suite.gnn.rank_shard import sorted_transpose
from suite.gnn.settings import required, shape_of
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.full_graph import FullGraph
from suite.simulate.network.machine import Machine


class VolumeExecutor:
    """Executor of the volumes of a full-graph run.

    Attributes:
        machine, efficiency: The modelled cluster and the efficiency of its software.
        published: Whether local work is modelled on the published code instead of this engine.
    """

    def __init__(self, *, machine: Machine, efficiency: Efficiency, published: bool = False) -> None:
        self.machine, self.efficiency, self.published = machine, efficiency, published

    def reads(self, config: RunConfig) -> Sequence[str]:
        exchange = (f"exchange.{name}" for name in ("oblivious", "replication", "assignment", "form"))
        model = (f"model.{name}" for name in ("shape", "dtype"))
        return ("graph", "partitioner", *exchange, *model, "seed", "grid.data", "system.name")

    def check(self, config: RunConfig) -> None:
        partition_data.validate_run(config)

    def run(self, config: RunConfig) -> ExecutorResult:
        """Raises DoesNotFit where a process needs more memory than a device of the modelled cluster has."""
        graph, matrix, _ = partition_data.graph_of(config)
        placement = partition_data.placement_of(config)
        partition = partition_data.partition_of(config, placement.parts)
        training = self.full_graph(config, graph, matrix, partition.parts)
        training.check_memory(self.machine)
        times, notes = self.times(training)
        random = self.full_graph(config, graph, matrix, Random().parts(matrix, placement.parts, config.seed))
        saved = random.seconds(self.machine, self.efficiency).seconds - times["epoch_time"].values[0]
        if saved > 0 and partition.seconds > 0:
            meaning = "partitioning time here over the time saved per epoch on the modelled cluster"
            times["epochs_to_repay"] = Metric("epoch", "lower", (partition.seconds / saved,), meaning)
        cached = "from the cache" if partition.cached else ""
        return ExecutorResult(
            Source.ANALYTIC,
            metrics={
                **volume_metrics(training),
                "nnz_imbalance": Metric("percent", "lower", (partition.quality["nnz_imbalance"],), "of 1D parts"),
                "edge_cut": Metric("edge", "lower", (partition.quality["edge_cut"],), "entries between parts"),
                "partition_time": Metric("s", "lower", (partition.seconds,), cached),
                **times,
            },
            memory={"predicted": {kind: [int(size) for size in sizes] for kind, sizes in training.memory().items()}},
            notes=(*notes, *graph.notes),
            calibrated_on=self.efficiency.calibrated_on,
        )

    def full_graph(self, config: RunConfig, graph: Any, matrix: csr_array, parts: Any) -> FullGraph:
        """The configured training run on a partition."""
        exchange, model = required(config.exchange), config.model
        placement = partition_data.placement_of(config)
        backward = forward = count_volumes(matrix, parts, placement.parts, placement)
        if not graph.symmetric:
            forward = count_volumes(sorted_transpose(matrix), parts, placement.parts, placement)
        return FullGraph(
            forward,
            shape_of(model),
            *partition_data.features_and_classes(config, graph),
            "oblivious" if exchange.oblivious else exchange.form,
            published=self.published,
            back=None if graph.symmetric else backward,
            value=partition_data.WIDTH[model.dtype],
        )

    def times(self, training: FullGraph) -> tuple[dict[str, Metric], list[str]]:
        """Modelled seconds of an epoch and of its phases, and notes."""
        epoch = training.seconds(self.machine, self.efficiency)
        origin = f"simulated on {self.machine.name} with the efficiency {self.efficiency.name}"
        metrics = {"epoch_time": Metric("s", "lower", (epoch.seconds,), origin)}
        metrics |= {f"epoch_{phase}": Metric("s", "lower", (time,), origin) for phase, time in epoch.phases().items()}
        return metrics, [f"efficiency.{name} {reason}" for name, reason in self.efficiency.reasons.items()]


def volume_metrics(training: FullGraph) -> dict[str, Metric]:
    """Rows of one forward product, bytes of an epoch, and bytes per process."""
    volumes, moved, sent = training.volumes, training.moved, training.sent()
    own_rows = np.repeat(volumes.rows, volumes.placement.replication)
    halo = np.full_like(own_rows, int(volumes.rows.max(initial=0))) if training.oblivious else moved.receive
    memory = np.sum(list(training.memory().values()), axis=0)
    row_sums = training.value * sum(training.widths) * np.max(moved.all_reduce_rows)

    return {
        **partition_data.volume_metrics(training),
        "mean_send": rows(moved.send.mean()),
        "max_pair": rows(moved.max_pair, "cut_P(G) in rows (G3)"),
        "max_bytes": Metric("B", "lower", (float(np.max(sent)),), "one epoch, busiest sender"),
        "row_sums": Metric("B", "lower", (float(row_sums),), "input of a process's all-reduces, one epoch (G2)"),
        "local_rows": rows(own_rows.max(), "rows of H on the fullest process"),
        "halo_rows": rows(halo.max(), "received and stored, on the fullest process"),
        "memory_per_process": Metric("B", "lower", (float(memory.max()),), "fullest process, counted"),
    }
