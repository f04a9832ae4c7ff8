"""Simulation of the published full-graph runs on stand-in graphs.

Each partition is computed once. A partition is found and counted on a drawn graph of a laptop's size and then taken to
the published number of vertices and entries, rows and blocks in proportion. A random order needs no drawn graph of the
published density: it follows from degrees (suite.papers.sparse_gnn.expected_volume). The published sizes are settings
(suite/papers/common/settings.yaml); no measured value of the paper is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from suite.core.claim import Scalar
from suite.core.errors import UnknownName
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import Placement, Volumes, count_volumes
from suite.papers.common import claims, trace
from suite.papers.sparse_gnn.expected_volume import by_chance, scaled
from suite.simulate.cost.efficiency import Stack
from suite.simulate.full_graph import Epoch, FullGraph
from suite.simulate.network.machine import Machine
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
def _datasets() -> Mapping[str, Mapping[str, Scalar]]:
    return {str(row["id"]): row for row in claims.settings()["datasets"] if row.get("paper") == "sparse_gnn"}


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


class SizedSource(Protocol):
    """A stand-in's source: a dataclass that draws a graph."""

    features: int
    classes: int

    def load(self, seed: int) -> Any: ...

    def provenance(self) -> Mapping[str, str | int]: ...


@dataclass(frozen=True, eq=False)
class GraphLab:
    """machine, stacks: by name; graphs: sources of stand-ins, by the published graph; partitioners: by name; folder:
    where partitions are kept; exchanges: class paths of exchanges that are trained with, by system; seeds: of stand-ins
    and their partitions, where another than SEED; changes: values that differ from those of plans.yaml, by name."""

    machine: Machine
    stacks: Mapping[str, Stack]
    graphs: Mapping[str, SizedSource]
    partitioners: Mapping[str, Partitioner]
    folder: Path | None = None
    exchanges: Mapping[str, str] = field(default_factory=dict)
    shape: GCN = field(default_factory=GCN)
    seeds: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, Scalar] = field(default_factory=dict)

    @cached_property
    def stack(self) -> Stack:
        """The constants of the paper's software; reading one is noted."""
        return trace.trace_stack(self.stacks["gnn"])

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """The claims that a name that an answer reads was fitted to: a constant, or a stand-in's own parameters."""
        kind, owner, *rest = name.split(".")
        if kind == "stack":
            return trace.fitted_to(self.stacks[owner], rest[0])
        return TUNED.get(owner, ()) if kind == "graph" else ()  # plans and partitioners were fitted to nothing

    @cached_property
    def _matrices(self) -> trace.TracedCache[str, csr_array]:
        return trace.TracedCache()

    @cached_property
    def _partitions(self) -> trace.TracedCache[tuple[str, str, int], Partition]:
        return trace.TracedCache()

    @cached_property
    def _counted(self) -> trace.TracedCache[tuple[str, str, int], Volumes]:
        return trace.TracedCache()

    @cached_property
    def _scaled(self) -> trace.TracedCache[tuple[str, str, int, int], Volumes]:
        return trace.TracedCache()

    def chosen(self, name: str, usual: Scalar) -> Scalar:
        """A value that the paper leaves open: `usual`, unless it is varied. `name`: plan.sparse_gnn.local_work"""
        trace.read(name)
        return self.changes.get(name, usual)

    def forms(self, usual: Sequence[str]) -> Sequence[str]:
        """The forms of the exchange whose epochs are cases of an answer: `usual`, or one of them alone."""
        one = str(self.chosen("plan.sparse_gnn.form", "both"))
        return [one] if one in usual else usual

    # -- stand-ins -----------------------------------------------------------------------------------------------------

    def source(self, graph: str) -> Any:
        if graph not in self.graphs:
            raise UnknownName("stand-in for a published graph", graph, self.graphs)
        trace.read(f"graph.{graph}")
        return self.graphs[graph]

    def matrix(self, graph: str) -> csr_array:
        """The stand-in's adjacency; its features are not drawn."""

        def drawn() -> csr_array:
            source = self.source(graph)
            bare = {name: 0 for name in ("features", "classes") if name in {f.name for f in fields(source)}}
            matrix: csr_array = replace(source, **bare).load(self.seeds.get(graph, SEED)).adjacency
            return matrix

        return self._matrices.get(graph, drawn)

    def partition(self, graph: str, partitioner: str, k: int) -> Partition:
        def found() -> Partition:
            if partitioner not in self.partitioners:
                raise UnknownName("partitioner", partitioner, self.partitioners)
            trace.read(f"partitioner.{partitioner}")
            seed = self.seeds.get(graph, SEED)
            return partition(self.partitioners[partitioner], self.matrix(graph), k, seed=seed, folder=self.folder)

        return self._partitions.get((graph, partitioner, k), found)

    def counted(self, graph: str, partitioner: str, k: int) -> Volumes:
        """Of one product on the stand-in itself, 1D."""

        def counted() -> Volumes:
            return count_volumes(self.matrix(graph), self.partition(graph, partitioner, k).parts, k)

        return self._counted.get((graph, partitioner, k), counted)

    # -- the published graphs --------------------------------------------------------------------------------------

    def volumes(self, graph: str, partitioner: str, processes: int, c: int = 1) -> Volumes:
        """In vertices and entries of the published graph, on the paper's P/c x c grid."""

        def found() -> Volumes:
            size, placement = Dataset.of(graph), Placement.of(processes, c)
            counts = {"vertices": size.vertices, "entries": size.entries}
            if partitioner == RANDOM:
                return by_chance(np.diff(self.matrix(graph).indptr), placement, **counts)
            return scaled(self.counted(graph, partitioner, placement.parts), **counts).on_grid(placement)

        return self._scaled.get((graph, partitioner, processes, c), found)

    def full_graph(
        self, graph: str, system: str, processes: int, c: int = 1, *, form: str | None = None, **options: Any
    ) -> FullGraph:
        """A system as published: c = 1 sends to all at once, c > 1 in stages (Section 6.2). `form`, and the options of
        FullGraph, change that."""
        if system not in PARTITIONERS:
            raise UnknownName("system on a whole graph", system, PARTITIONERS)
        size = Dataset.of(graph)
        usual = "oblivious" if system == "cagnet" else "fused" if c == 1 else "staged"
        volumes = self.volumes(graph, PARTITIONERS[system], processes, c)
        settings = {"published": self.chosen("plan.sparse_gnn.local_work", "published") == "published", **options}
        return FullGraph(volumes, self.shape, size.features, size.classes, form or usual, **settings)

    @cached_property
    def _epochs(self) -> trace.TracedCache[tuple[Any, ...], Epoch]:
        return trace.TracedCache()

    def epoch(self, graph: str, system: str, processes: int, c: int = 1, **options: Any) -> Epoch:
        key = graph, system, processes, c, *sorted(options.items())

        def simulated() -> Epoch:
            return self.full_graph(graph, system, processes, c, **options).seconds(self.machine, self.stack)

        return self._epochs.get(key, simulated)

    def on(self, stack: Stack) -> GraphLab:
        """The same stand-ins and partitions on another stack."""
        changed = replace(self, stacks={**self.stacks, "gnn": stack})
        for name in ("_matrices", "_partitions", "_counted", "_scaled"):
            changed.__dict__[name] = getattr(self, name)
        return changed

    def varied(self, name: str, value: Scalar) -> GraphLab:
        """The lab with another value of a constant or a choice; what does not read it is kept.

        Args:
            name: stack.gnn.pairs, graph.protein.bridges, partitioner.gvb.effort, plan.sparse_gnn.form.
            value: Of several spreads of mixing a factor.
        """
        kind, owner, key = name.split(".")
        if kind == "stack":
            changed = replace(self, stacks={**self.stacks, owner: trace.with_constant(self.stacks[owner], key, value)})
        elif kind == "partitioner":
            partitioner = replace(self.partitioners[owner], **{key: value})  # type: ignore[type-var]
            changed = replace(self, partitioners={**self.partitioners, owner: partitioner})
        elif kind == "graph" and key == "seed":
            changed = replace(self, seeds={**self.seeds, owner: int(value)})
        elif kind == "graph":
            source: Any = self.graphs[owner]
            now = getattr(source, key)
            made_of = tuple(each * float(value) for each in now) if isinstance(now, tuple) else value
            changed = replace(self, graphs={**self.graphs, owner: replace(source, **{key: made_of})})
        else:
            changed = replace(self, changes={**self.changes, name: value})
        for memory in ("_matrices", "_partitions", "_counted", "_scaled", "_epochs"):
            changed.__dict__[memory] = getattr(self, memory).without(name)
        return changed
