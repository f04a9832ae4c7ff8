"""Simulation of the published full-graph runs on stand-in graphs.

Volumes are counted on a synthetic graph of a laptop's size and scaled in proportion to the published vertices and
entries. Volumes of a random order follow from the degrees (suite.papers.sparse_gnn.expected_volume). The published
sizes are settings (suite/papers/settings.yaml); no measured value of the paper is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from scipy.sparse import csr_array

from suite.claims import load, trace
from suite.claims.claim import Scalar
from suite.claims.lab import BaseLab, cached
from suite.core.errors import UnknownName
from suite.gnn.partition import Partition, Partitioner, partition
from suite.gnn.plan import Placement, Volumes, count_volumes
from suite.papers.sparse_gnn.expected_volume import random_order_volumes, scale_volumes
from suite.simulate.full_graph import Epoch, FullGraph
from suite.workload.gcn import GCN

RANDOM = "random"
PARTITIONERS = {  # by system
    "cagnet": RANDOM,
    "sparsity_aware": RANDOM,
    "sparsity_aware_metis": "metis",
    "sparsity_aware_gvb": "gvb",
}
SEED = 0


@cache
def _datasets() -> Mapping[str, Mapping[str, Scalar]]:
    return {str(row["id"]): row for row in load.settings()["datasets"] if row.get("paper") == "sparse_gnn"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Sizes of a published graph."""

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


# claims to which a stand-in's parameters were tuned, so that agreement is no evidence (suite/data/graphs)
TUNED = {
    "amazon": (
        *(
            f"sparse_gnn.table2.{column}.p_{p}"
            for column in ("average", "maximum", "imbalance")
            for p in (16, 32, 64, 128, 256)
        ),
        *(f"sparse_gnn.table2.{name}" for name in ("max_imbalance", "bottleneck_ratio", "imbalance_grows")),
        "sparse_gnn.sec7.1.1.bottleneck_p64",
    ),
    "protein": ("sparse_gnn.sec7.1.1.protein_edgecut",),
}


class SizedSource(Protocol):
    """Source of a stand-in: a dataclass that generates a graph."""

    features: int
    classes: int

    def load(self, seed: int) -> Any: ...

    def provenance(self) -> Mapping[str, str | int]: ...


@dataclass(frozen=True, eq=False)
class GraphLab(BaseLab):
    """Simulated runs of the published graphs.

    Attributes:
        graphs: Sources of the stand-ins by published graph.
        partitioners: By name.
        folder: Cache of partitions; None disables it.
        exchanges: Class paths of the exchanges by system, for answers that train.
        shape: The network.
        seeds: Seeds of a stand-in and its partitions other than SEED, by graph.
    """

    software = "gnn"

    graphs: Mapping[str, SizedSource]
    partitioners: Mapping[str, Partitioner]
    folder: Path | None = None
    exchanges: Mapping[str, str] = field(default_factory=dict)
    shape: GCN = field(default_factory=GCN)
    seeds: Mapping[str, int] = field(default_factory=dict)

    def fitted_to(self, name: str) -> tuple[str, ...]:
        """The claims to which an input of an answer was fitted: a constant of an efficiency, or a stand-in."""
        kind, owner, *_ = name.split(".")
        return TUNED.get(owner, ()) if kind == "graph" else super().fitted_to(name)

    def forms(self, usual: Sequence[str]) -> Sequence[str]:
        """The forms of the exchange that are cases of an answer: `usual`, or only the varied one."""
        form = str(self.choice("plan.sparse_gnn.form", "both"))
        return [form] if form in usual else usual

    # -- stand-ins -----------------------------------------------------------------------------------------------------

    def source(self, graph: str) -> Any:
        if graph not in self.graphs:
            raise UnknownName("stand-in for a published graph", graph, self.graphs)
        trace.read(f"graph.{graph}")
        return self.graphs[graph]

    @cached
    def matrix(self, graph: str) -> csr_array:
        """The adjacency matrix of a stand-in, generated without features."""
        source = self.source(graph)
        without = {name: 0 for name in ("features", "classes") if name in {f.name for f in fields(source)}}
        matrix: csr_array = replace(source, **without).load(self.seeds.get(graph, SEED)).adjacency
        return matrix

    @cached
    def partition(self, graph: str, partitioner: str, k: int) -> Partition:
        if partitioner not in self.partitioners:
            raise UnknownName("partitioner", partitioner, self.partitioners)
        trace.read(f"partitioner.{partitioner}")
        seed = self.seeds.get(graph, SEED)
        return partition(self.partitioners[partitioner], self.matrix(graph), k, seed=seed, folder=self.folder)

    @cached
    def counted(self, graph: str, partitioner: str, k: int) -> Volumes:
        """1D volumes of one product on the unscaled stand-in."""
        return count_volumes(self.matrix(graph), self.partition(graph, partitioner, k).parts, k)

    # -- the published graphs --------------------------------------------------------------------------------------

    @cached
    def volumes(self, graph: str, partitioner: str, processes: int, c: int = 1) -> Volumes:
        """Volumes at the published vertices and entries, on the paper's P/c x c grid."""
        size, placement = Dataset.of(graph), Placement.of(processes, c)
        counts = {"vertices": size.vertices, "entries": size.entries}
        if partitioner == RANDOM:
            return random_order_volumes(np.diff(self.matrix(graph).indptr), placement, **counts)
        return scale_volumes(self.counted(graph, partitioner, placement.parts), **counts).on_grid(placement)

    def full_graph(
        self, graph: str, system: str, processes: int, c: int = 1, *, form: str | None = None, **options: Any
    ) -> FullGraph:
        """A system as published: fused for c = 1, staged for c > 1 (Section 6.2).

        `form` and `options`, the fields of FullGraph, override this.
        """
        if system not in PARTITIONERS:
            raise UnknownName("system on a whole graph", system, PARTITIONERS)
        size = Dataset.of(graph)
        usual = "oblivious" if system == "cagnet" else "fused" if c == 1 else "staged"
        volumes = self.volumes(graph, PARTITIONERS[system], processes, c)
        settings = {"published": self.choice("plan.sparse_gnn.local_work", "published") == "published", **options}
        return FullGraph(volumes, self.shape, size.features, size.classes, form or usual, **settings)

    @cached
    def epoch(self, /, graph: str, system: str, processes: int, c: int = 1, **options: Any) -> Epoch:
        return self.full_graph(graph, system, processes, c, **options).seconds(self.machine, self.efficiency())

    def _changed(self, name: str, value: Scalar) -> Self:
        """The lab with another value of a constant or a choice, of a partitioner's field or a stand-in's parameter.

        A factor changes all spreads of a parameter with several.
        """
        kind, owner, key = name.split(".")
        if kind == "partitioner":
            partitioner = replace(self.partitioners[owner], **{key: value})  # type: ignore[type-var]
            return replace(self, partitioners={**self.partitioners, owner: partitioner})
        if kind != "graph":
            return super()._changed(name, value)
        if key == "seed":
            return replace(self, seeds={**self.seeds, owner: int(value)})
        source: Any = self.graphs[owner]
        current = getattr(source, key)
        parameter = tuple(spread * float(value) for spread in current) if isinstance(current, tuple) else value
        return replace(self, graphs={**self.graphs, owner: replace(source, **{key: parameter})})
