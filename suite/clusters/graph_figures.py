"""Decides what a figure of the sparsity-aware GNN paper leaves in a record: its answers, panels, and their fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from suite import claims
from suite.clusters import (  # noqa: F401 (they enter figures)
    sparse_gnn,
    sparse_gnn_counted,
    sparse_gnn_grid,
    sparse_gnn_small,
    sparse_gnn_trained,
)
from suite.clusters.figure import find
from suite.clusters.graph_lab import GraphLab
from suite.clusters.published import metrics, series
from suite.config.run import RunConfig
from suite.core.errors import Refused
from suite.core.protocols import Carried, Missing
from suite.core.record import Source
from suite.core.values import shown
from suite.gnn.partition import Partitioner
from suite.simulate.machine import Machine
from suite.simulate.stack import Stack

# what a stand-in was drawn to agree with, so that agreement proves nothing (suite/data/graphs)
TUNED = {
    "amazon": (
        *(
            f"sparse_gnn.table2.{what}.p_{p}"
            for what in ("average", "maximum", "imbalance")
            for p in (16, 32, 64, 128, 256)
        ),
        *(f"sparse_gnn.table2.{name}" for name in ("max_imbalance", "bottleneck_ratio", "imbalance_grows")),
        "sparse_gnn.sec7.1.1.bottleneck_p64",
    ),
    "protein": ("sparse_gnn.sec7.1.1.protein_edgecut",),
}
_LABS: dict[str, GraphLab] = {}


class GraphFigures:
    """The executor of one figure of the sparsity-aware GNN paper. stand_ins: configs of conf/graph, built, by
    the published graph; counted: whether the figure is counted, without machine and stack."""

    def __init__(
        self,
        *,
        figure: str,
        machine: Machine,
        stacks: Mapping[str, Stack],
        stand_ins: Mapping[str, Mapping[str, Any]],
        partitioners: Mapping[str, Partitioner],
        exchanges: Mapping[str, str] | None = None,
        folder: str | None = None,
        counted: bool = False,
        name: str = "graph_clusters",
        label: str = "",
        sources: Sequence[str] = (),
    ) -> None:
        self.figure, self.counted = figure, counted
        sources_of = {dataset: stand_in.get("source") for dataset, stand_in in stand_ins.items()}
        for dataset, source in sources_of.items():
            if not is_dataclass(source):  # asked for other sizes, and for no features
                raise Refused(f"stand_ins.{dataset}.source={shown(source)}", rule="a dataclass with load(seed)")
        parts = machine, stacks, sources_of, partitioners, Path(folder) if folder else None, exchanges or {}
        # figures of one experiment share graphs and partitions, as long as this process lives
        self.lab = _LABS.setdefault(repr(parts), GraphLab(*parts))

    def check(self, config: RunConfig) -> None:
        find(self.figure)

    def run(self, config: RunConfig) -> Carried:
        found = find(self.figure)
        published = {claim.id: claim for claim in claims.load()}
        panels = found.panels(self.lab, published)
        stack, told = self.lab.stack, self.told()
        fitted = () if self.counted else stack.calibrated_on
        tuned = (name for graph in self.lab.graphs for name in TUNED.get(graph, ()))
        return Carried(
            Source.ANALYTIC if self.counted else Source.SIMULATED,
            metrics=metrics(found, published, self.lab),
            series=series(panels),
            notes=(*told, *(() if self.counted else (f"{name}: {why}" for name, why in stack.reasons.items()))),
            calibrated_on=(*fitted, *tuned),
        )

    def told(self) -> list[str]:
        """What stands for what, and what a partitioner lacks here."""
        said = []
        for graph, source in self.lab.graphs.items():
            counts = source.provenance()
            said.append(f"{graph}: {counts['name']} of {counts['vertices']} vertices, {counts['edges']} entries")
        for name, one in self.lab.partitioners.items():
            if isinstance(ready := one.probe(), Missing):
                said.append(f"{name}: {ready.reason}")
        return said
