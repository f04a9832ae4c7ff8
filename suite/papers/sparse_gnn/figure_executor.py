"""Executor of a figure of the sparsity-aware GNN paper: answers, panels and their fits in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypedDict

from suite.claims.figure_executor import FigureExecutor, of_efficiency
from suite.core.errors import InvalidRequest
from suite.core.protocols import Missing
from suite.core.record import Source
from suite.core.values import format_value
from suite.gnn.partition import Partitioner
from suite.papers.sparse_gnn.cluster_runs import TUNED, GraphLab, SizedSource
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine


class StandInGraph(TypedDict, total=False):
    """A graph's config group with its built source."""

    source: Any


class GraphFigureExecutor(FigureExecutor):
    """The executor of one figure of the sparsity-aware GNN paper.

    Args:
        counted: Whether the figure is counted in plans, without machine and efficiency.
    """

    lab: GraphLab

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
        sources: dict[str, SizedSource] = {}
        for dataset, stand_in in stand_ins.items():
            source: Any = stand_in.get("source")
            if not is_dataclass(source):  # its fields are replaced, to change sizes and drop the features
                raise InvalidRequest(
                    f"stand_ins.{dataset}.source={format_value(source)}", rule="a dataclass with load(seed)"
                )
            sources[dataset] = source  # type: ignore[assignment]
        cache = Path(folder) if folder else None
        super().__init__(figure, GraphLab, machine, efficiencies, sources, partitioners, cache, exchanges or {})
        self.source = Source.ANALYTIC if counted else Source.SIMULATED

    def papers(self) -> Sequence[str]:
        return ["sparse_gnn"]

    def inputs(self, paper: str) -> tuple[list[str], list[str]]:
        """Notes on the stand-ins and on missing requirements of partitioners, and what was fitted to claims."""
        notes = []
        for graph, source in self.lab.graphs.items():
            counts = source.provenance()
            notes.append(f"{graph}: {counts['name']} of {counts['vertices']} vertices, {counts['edges']} entries")
        for name, partitioner in self.lab.partitioners.items():
            if isinstance(ready := partitioner.probe(), Missing):
                notes.append(f"{name}: {ready.reason}")
        simulated = self.source is Source.SIMULATED
        reasons, fitted = of_efficiency(self.lab.efficiencies["gnn"] if simulated else None)
        tuned = (name for graph in self.lab.graphs for name in TUNED.get(graph, ()))
        return [*notes, *reasons], [*fitted, *tuned]
