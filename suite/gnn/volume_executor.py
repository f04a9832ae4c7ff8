"""Executor without ranks: rows, bytes and memory from the plan, and a modelled epoch time.

The `volumes` executor. Any number of processes, as nothing is started: the config's graph and partition, the rows that
its exchange sends, what a process holds, and the seconds of an epoch on a modelled cluster; beside it on this machine,
where `make doctor` has measured its links.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Source
from suite.gnn import partition_data
from suite.gnn.partition.simple import Random
from suite.gnn.plan import volumes
from suite.gnn.rank_shard import transposed
from suite.gnn.settings import exchange_settings, graph_settings, shape_of, ways
from suite.simulate.cost.efficiency import Stack
from suite.simulate.full_graph import FullGraph
from suite.simulate.network.exchange import LINKS
from suite.simulate.network.machine import Machine, measured

HERE = Stack("as measured", products=1.0)  # what was measured is what is reached
BACKEND = "suite over gloo"  # what carries an exchange between processes on CPUs


class VolumeExecutor:
    """machine, stack: of the modelled cluster; local: the file that `make doctor` writes; published: whether local work
    is the published code's or the engine's."""

    def __init__(
        self,
        *,
        machine: Machine,
        stack: Stack,
        local: str | None = None,
        published: bool = False,
    ) -> None:
        self.machine, self.stack, self.local, self.published = machine, stack, local, published

    def check(self, config: RunConfig) -> None:
        partition_data.check(config)

    def run(self, config: RunConfig) -> ExecutorResult:
        """Raises DoesNotFit where a process needs more memory than a device of the modelled cluster has."""
        graph, matrix = partition_data.graph_of(config)
        placement = partition_data.placement_of(config)
        partition = partition_data.partition_of(config, placement.parts)
        one = self.full_graph(config, graph, matrix, partition.parts)
        one.check_memory(self.machine)
        times, notes = self.times(one)
        order = self.full_graph(config, graph, matrix, Random().parts(matrix, placement.parts, config.seed))
        saved = order.seconds(self.machine, self.stack).seconds - times["epoch_time"].values[0]
        if saved > 0 and partition.seconds > 0:
            meaning = "the partitioner's seconds here over those that an epoch saves on the modelled cluster"
            times["epochs_to_repay"] = Metric("epoch", "lower", (partition.seconds / saved,), meaning)
        cached = "kept from before" if partition.cached else ""
        return ExecutorResult(
            Source.ANALYTIC,
            metrics={
                **of_plan(one),
                "nnz_imbalance": Metric("percent", "lower", (partition.quality.nnz_imbalance,), "of 1D parts"),
                "edge_cut": Metric("edge", "lower", (float(partition.quality.edge_cut),), "entries between parts"),
                "partition_time": Metric("s", "lower", (partition.seconds,), cached),
                **times,
            },
            memory={"predicted": {kind: [int(b) for b in each] for kind, each in one.memory().items()}},
            notes=(*notes, *graph.notes, *partition.notes),
            calibrated_on=self.stack.calibrated_on,
        )

    def full_graph(self, config: RunConfig, graph: Any, matrix: csr_array, parts: Any) -> FullGraph:
        """The configured training run, on these parts."""
        exchange, model = exchange_settings(config), config.model
        order, epoch = ways(model)
        placement = partition_data.placement_of(config)
        back = volumes(matrix, parts, placement.parts, placement)
        ahead = back
        if not graph.symmetric:
            ahead = volumes(transposed(matrix), parts, placement.parts, placement)
        return FullGraph(
            ahead,
            shape_of(model),
            *widths(config, graph),
            "oblivious" if exchange.oblivious else exchange.form,
            published=self.published,
            order=order,
            epoch=epoch,
            back=None if graph.symmetric else back,
            value=partition_data.WIDTH[model.dtype],
        )

    def times(self, one: FullGraph) -> tuple[dict[str, Metric], list[str]]:
        """Seconds of an epoch by phase, and of one on this machine; notes."""
        epoch = one.seconds(self.machine, self.stack)
        origin = f"simulated on {self.machine.name} with the stack {self.stack.name}"
        metrics = {"epoch_time": Metric("s", "lower", (epoch.seconds,), origin)}
        metrics |= {f"epoch_{phase}": Metric("s", "lower", (time,), origin) for phase, time in epoch.phases().items()}
        here, why = self.here(one)
        if here is not None:
            metrics["epoch_time_here"] = here
        reasons = [f"stack.{name} {reason}" for name, reason in self.stack.reasons.items()]
        return metrics, [*reasons, *([why] if why else [])]

    def here(self, one: FullGraph) -> tuple[Metric | None, str]:
        """An epoch on as many cores of this machine's kind, by the links that were measured between two ranks."""
        try:
            machine = measured(name="local", file=self.local or "")
        except InvalidRequest as error:
            return None, str(error)
        backends = machine.backends.get("point_to_point", {})
        if BACKEND in backends:
            machine = replace(machine, within=backends[BACKEND], between=backends[BACKEND])
        # all processes are on this machine, however many it has cores for
        machine = replace(machine, devices_per_node=max(machine.devices_per_node, one.volumes.placement.processes))
        seconds = one.seconds(machine, HERE, LINKS).seconds
        origin = f"a core a process, links as {BACKEND} between two ranks; broadcasts as a chain of them"
        return Metric("s", "lower", (seconds,), origin), ""


def widths(config: RunConfig, graph: Any) -> tuple[int, int]:
    """Columns of the features and labels. Raises InvalidRequest for a graph without either."""
    if graph.features is None or not graph.classes:
        what = f"graph={graph_settings(config).name} has {'labels' if graph.classes else 'features'} only"
        raise InvalidRequest(what, rule="features and labels, read or drawn", legal="graph.source.features=300")
    return int(graph.features.shape[1]), int(graph.classes)


def of_plan(one: FullGraph) -> dict[str, Metric]:
    """Rows of one forward product, bytes of an epoch, and bytes of a process."""
    moved = one.moved
    send, own_rows = moved.send, np.repeat(one.volumes.rows, one.volumes.placement.replication)
    halo = np.full_like(own_rows, int(one.volumes.rows.max(initial=0))) if one.oblivious else moved.receive
    memory = np.sum(list(one.memory().values()), axis=0)

    def rows(value: float, note: str = "") -> Metric:
        return Metric("row", "lower", (float(value),), note)

    return {
        **partition_data.moved_metrics(moved, float(np.sum(one.sent()))),
        "mean_send": rows(send.mean()),
        "max_pair": rows(moved.pair, "cut_P(G) in rows (G3)"),
        "max_bytes": Metric("B", "lower", (float(np.max(one.sent())),), "an epoch, of the busiest sender"),
        "row_sums": Metric(
            "B",
            "lower",
            (float(one.value * sum(one.widths) * np.max(moved.summed)),),
            "a process brings, an epoch (G2)",
        ),
        "local_rows": rows(own_rows.max(), "of H on the fullest process"),
        "halo_rows": rows(halo.max(), "received and held, on the fullest process"),
        "memory_per_process": Metric("B", "lower", (float(memory.max()),), "of the fullest, counted"),
    }
