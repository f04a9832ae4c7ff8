"""Decides how the published full-graph runs are simulated: stand-ins for the graphs, each partition made once.

A partition is found and counted on a drawn graph of a laptop's size and then taken to the published number of vertices
and entries, rows and blocks in proportion. A random order needs no drawn graph of the published density: it follows
from degrees (suite.gnn.chance). The published sizes are settings (suite/claims/settings.yaml); no measured value of the
paper is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from suite import claims
from suite.core.errors import UnknownName
from suite.gnn.chance import by_chance
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import Placement, Volumes, volumes
from suite.simulate.full_graph import Epoch, FullGraph, scaled
from suite.simulate.machine import Machine
from suite.simulate.stack import Stack
from suite.workload.gcn import GCN

RANDOM = "random"
PARTITIONERS = {  # of the systems compared
    "cagnet": RANDOM,
    "sparsity_aware": RANDOM,
    "sparsity_aware_metis": "metis",
    "sparsity_aware_gvb": "gvb",
}
SEED = 0


@cache
def _datasets() -> Mapping[str, Mapping[str, Any]]:
    return {row["id"]: row for row in claims.settings()["datasets"] if row.get("paper") == "sparse_gnn"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A published graph's counts."""

    vertices: int
    entries: int
    features: int
    classes: int

    @classmethod
    def of(cls, name: str) -> Dataset:
        rows = _datasets()
        if name not in rows:
            raise UnknownName("published graph", name, rows)
        return cls(*(int(rows[name][key]) for key in ("vertices", "edges", "features", "labels")))


@dataclass(frozen=True, eq=False)
class GraphLab:
    """machine, stacks: by name; graphs: sources of stand-ins, by the published graph; partitioners: by name; folder:
    where partitions are kept; exchanges: class paths of exchanges that are trained with, by system."""

    machine: Machine
    stacks: Mapping[str, Stack]
    graphs: Mapping[str, Any]
    partitioners: Mapping[str, Partitioner]
    folder: Path | None = None
    exchanges: Mapping[str, str] = field(default_factory=dict)
    shape: GCN = field(default_factory=GCN)

    @property
    def stack(self) -> Stack:
        return self.stacks["gnn"]

    @cached_property
    def _matrices(self) -> dict[str, csr_array]:
        return {}

    @cached_property
    def _partitions(self) -> dict[tuple[str, str, int], Partition]:
        return {}

    @cached_property
    def _counted(self) -> dict[tuple[str, str, int], Volumes]:
        return {}

    # -- stand-ins -----------------------------------------------------------------------------------------------------

    def source(self, graph: str) -> Any:
        if graph not in self.graphs:
            raise UnknownName("stand-in for a published graph", graph, self.graphs)
        return self.graphs[graph]

    def matrix(self, graph: str) -> csr_array:
        """The stand-in's adjacency; its features are not drawn."""
        if graph not in self._matrices:
            source = self.source(graph)
            bare = {name: 0 for name in ("features", "classes") if name in {f.name for f in fields(source)}}
            self._matrices[graph] = replace(source, **bare).load(SEED).adjacency
        return self._matrices[graph]

    def partition(self, graph: str, partitioner: str, k: int) -> Partition:
        key = graph, partitioner, k
        if key not in self._partitions:
            if partitioner not in self.partitioners:
                raise UnknownName("partitioner", partitioner, self.partitioners)
            self._partitions[key] = partition(
                self.partitioners[partitioner], self.matrix(graph), k, seed=SEED, folder=self.folder
            )
        return self._partitions[key]

    def counted(self, graph: str, partitioner: str, k: int) -> Volumes:
        """Of one product on the stand-in itself, 1D."""
        key = graph, partitioner, k
        if key not in self._counted:
            self._counted[key] = volumes(self.matrix(graph), self.partition(graph, partitioner, k).parts, k)
        return self._counted[key]

    # -- the published graphs --------------------------------------------------------------------------------------

    def volumes(self, graph: str, partitioner: str, processes: int, c: int = 1) -> Volumes:
        """In vertices and entries of the published graph, on the paper's P/c x c grid."""
        size, placement = Dataset.of(graph), Placement.of(processes, c)
        counts = {"vertices": size.vertices, "entries": size.entries}
        if partitioner == RANDOM:
            return by_chance(np.diff(self.matrix(graph).indptr), placement, **counts)
        return scaled(self.counted(graph, partitioner, placement.parts), **counts).on(placement)

    def full_graph(
        self, graph: str, system: str, processes: int, c: int = 1, *, form: str | None = None, **options: Any
    ) -> FullGraph:
        """A system as published: c = 1 sends to all at once, c > 1 in stages (Section 6.2). `form`, and the options of
        FullGraph, change that."""
        if system not in PARTITIONERS:
            raise UnknownName("system on a whole graph", system, PARTITIONERS)
        size = Dataset.of(graph)
        usual = "oblivious" if system == "cagnet" else "fused" if c == 1 else "staged"
        found = self.volumes(graph, PARTITIONERS[system], processes, c)
        kept = {"published": True, **options}
        return FullGraph(found, self.shape, size.features, size.classes, form or usual, **kept)

    @cached_property
    def _epochs(self) -> dict[tuple[Any, ...], Epoch]:
        return {}

    def epoch(self, graph: str, system: str, processes: int, c: int = 1, **options: Any) -> Epoch:
        key = graph, system, processes, c, *sorted(options.items())
        if key not in self._epochs:
            made = self.full_graph(graph, system, processes, c, **options)
            self._epochs[key] = made.seconds(self.machine, self.stack)
        return self._epochs[key]

    def on(self, stack: Stack) -> GraphLab:
        """The same stand-ins and partitions on another stack."""
        made = replace(self, stacks={**self.stacks, "gnn": stack})
        for name in ("_matrices", "_partitions", "_counted"):
            made.__dict__[name] = getattr(self, name)
        return made
