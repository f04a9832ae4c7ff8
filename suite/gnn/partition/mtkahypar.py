"""Mt-KaHyPar partitioner: minimise the total communication volume.

The rows that a product moves are a sum over nets: net v holds vertex v and all vertices that read row v, and costs the
number of parts it touches less one. This is the connectivity metric (km1) of the column-net hypergraph (Catalyurek,
Aykanat, IEEE TPDS 10, 1999). The partitioner is slow and serves as the reference for the total volume alone. Source:
Gottesbueren, Heuer, Sanders, Schlag: Scalable shared-memory hypergraph partitioning, ALENEX 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import IntArray, directed_pattern, partition_linked, validate_input
from suite.gnn.partition.protocol import Partitioner

PRESETS = ("deterministic", "deterministic_quality")  # other presets give other parts in every call


@dataclass(frozen=True)
class MtKahypar(Partitioner):
    """Minimises km1 of the nets v + N(v), exact for directed matrices. A vertex weighs its degree + 1, as for METIS.

    Attributes:
        preset: deterministic, or deterministic_quality, which takes longer. Neither depends on the seed.
        imbalance: Share by which the heaviest part may exceed the mean.
        threads: Threads of Mt-KaHyPar.
    """

    preset: str = "deterministic"
    imbalance: float = 0.03
    threads: int = 1
    name: str = "mtkahypar"
    objective = "total volume"
    seedable = False
    packages = ("mtkahypar",)

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UnknownName("preset", self.preset, PRESETS)
        if not 0 <= self.imbalance < float("inf"):
            raise InvalidRequest(f"imbalance={self.imbalance}", rule="a share, not negative", legal="imbalance=0.03")

    def probe(self) -> Ready | Missing:
        return Ready() if find_spec("mtkahypar") else Missing("mtkahypar is not installed: pip install '.[gnn]'")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32. Raises MissingDependency without mtkahypar."""
        validate_input(matrix, k, seed)

        def solve(pattern: csr_array, linked: IntArray) -> IntArray:
            readers = csr_array(directed_pattern(matrix)[linked][:, linked].T)
            weight = np.diff(pattern.indptr) + 1
            return self.km1(nets(readers), weight, k, seed)[0]

        return partition_linked(matrix, k, solve, imbalance=self.imbalance)

    def km1(self, nets: list[list[int]], weight: IntArray, k: int, seed: int) -> tuple[IntArray, int]:
        """(n,) part ids, and their km1 as Mt-KaHyPar counts it."""
        try:
            import mtkahypar
        except ImportError as error:
            raise MissingDependency("mtkahypar", f"pip install '.[gnn]' ({error})") from error
        initialized = mtkahypar.initialize(self.threads, print_warnings=False)
        context = initialized.context_from_preset(getattr(mtkahypar.PresetType, self.preset.upper()))
        context.set_partitioning_parameters(k, self.imbalance, mtkahypar.Objective.KM1)
        context.logging = False
        mtkahypar.set_seed(seed % 2**31)
        graph = initialized.create_hypergraph(context, len(weight), len(nets), nets, weight.tolist(), [1] * len(nets))
        partitioned = graph.partition(context)
        return np.asarray(partitioned.get_partition(), np.int32), int(partitioned.km1())


def nets(readers: csr_array) -> list[list[int]]:
    """One net per vertex that others read: the vertex and its readers. `readers` is the transposed pattern."""
    pointer, pins = readers.indptr.tolist(), readers.indices.tolist()
    return [[v, *pins[pointer[v] : pointer[v + 1]]] for v in range(readers.shape[0]) if pointer[v] < pointer[v + 1]]
