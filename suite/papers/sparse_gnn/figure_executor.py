"""Executor of a figure of the sparsity-aware GNN paper: answers, panels and their fits in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypedDict

from suite.claims.figure_executor import figure_result, find_figure, shared_lab
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.protocols import ExecutorResult, Missing
from suite.core.record import Source
from suite.core.values import format_value
from suite.gnn.partition import Partitioner
from suite.papers.sparse_gnn.cluster_runs import TUNED, GraphLab, SizedSource
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine

_LABS: dict[str, GraphLab] = {}


class StandInGraph(TypedDict, total=False):
    """A graph's config group with its built source."""

    source: Any


class GraphFigureExecutor:
    """The executor of one figure of the sparsity-aware GNN paper.

    Attributes:
        figure: Name of the figure.
        counted: Whether the figure is counted in plans, without machine and efficiency.
        lab: Simulated runs, shared by executors with equal arguments.
    """

    def __init__(
        self,
        *,
        figure: str,
        machine: Machine,
        efficiencies: Mapping[str, Efficiency],
        stand_ins: Mapping[str, StandInGraph],
        partitioners: Mapping[str, Partitioner],
        exchanges: Mapping[str, str] | None = None,
        folder: str | None = None,
        counted: bool = False,
    ) -> None:
        self.figure, self.counted = figure, counted
        sources = {}
        for dataset, stand_in in stand_ins.items():
            source: Any = stand_in.get("source")
            if not is_dataclass(source):  # its fields are replaced, to change sizes and drop the features
                raise InvalidRequest(
                    f"stand_ins.{dataset}.source={format_value(source)}", rule="a dataclass with load(seed)"
                )
            sized_source: SizedSource = stand_in["source"]
            sources[dataset] = sized_source
        cache_folder = Path(folder) if folder else None
        self.lab = shared_lab(
            _LABS, GraphLab, machine, efficiencies, sources, partitioners, cache_folder, exchanges or {}
        )

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ()

    def check(self, config: RunConfig) -> None:
        find_figure(self.figure, ["sparse_gnn"])

    def run(self, config: RunConfig) -> ExecutorResult:
        efficiency = self.lab.efficiency
        fitted = () if self.counted else efficiency.calibrated_on
        tuned = (name for graph in self.lab.graphs for name in TUNED.get(graph, ()))
        return figure_result(
            self.figure,
            self.lab,
            Source.ANALYTIC if self.counted else Source.SIMULATED,
            notes=(
                *self.notes(),
                *(() if self.counted else (f"{name}: {reason}" for name, reason in efficiency.reasons.items())),
            ),
            calibrated_on=(*fitted, *tuned),
        )

    def notes(self) -> list[str]:
        """The stand-ins, and missing requirements of partitioners."""
        notes = []
        for graph, source in self.lab.graphs.items():
            counts = source.provenance()
            notes.append(f"{graph}: {counts['name']} of {counts['vertices']} vertices, {counts['edges']} entries")
        for name, partitioner in self.lab.partitioners.items():
            if isinstance(ready := partitioner.probe(), Missing):
                notes.append(f"{name}: {ready.reason}")
        return notes
