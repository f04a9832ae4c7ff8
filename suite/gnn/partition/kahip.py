"""KaHIP partitioner: minimise the edge cut, with the presets for social networks.

Sources: Sanders, Schulz: Think locally, act globally: highly balanced graph partitioning, SEA 2013; KaHIP's user guide
for its presets.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import IntArray, partition_linked, validate_input
from suite.gnn.partition.protocol import Partitioner

MODES = {"fastsocial": 3, "ecosocial": 4, "strongsocial": 5, "fast": 0, "eco": 1, "strong": 2}


@dataclass(frozen=True)
class Kahip(Partitioner):
    """One call of KaFFPa. A vertex weighs its degree + 1, as for METIS.

    Attributes:
        mode: Preset. fastsocial is as fast as METIS on graphs with communities. It is up to a hundred times slower on
            graphs without: an R-MAT graph of 2^16 vertices in 64 parts takes a minute. ecosocial takes three times as
            long for a smaller cut.
        imbalance: Share by which the heaviest part may exceed the mean.
    """

    mode: str = "fastsocial"
    imbalance: float = 0.03
    name: str = "kahip"
    objective = "edge cut"
    seedable = True
    packages = ("kahip",)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownName("mode", self.mode, MODES)
        if not 0 <= self.imbalance < float("inf"):
            raise InvalidRequest(f"imbalance={self.imbalance}", rule="a share, not negative", legal="imbalance=0.03")

    def probe(self) -> Ready | Missing:
        return Ready() if find_spec("kahip") else Missing("kahip is not installed: pip install '.[gnn]'")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32. A directed matrix is partitioned as the undirected graph of A + A^T."""
        validate_input(matrix, k, seed)

        def solve(pattern: csr_array, linked: IntArray) -> IntArray:
            return kaffpa(pattern, k, seed, mode=self.mode, imbalance=self.imbalance)

        return partition_linked(matrix, k, solve, imbalance=self.imbalance)


def kaffpa(pattern: csr_array, k: int, seed: int, *, mode: str = "fastsocial", imbalance: float = 0.03) -> IntArray:
    """(n,) part ids of an undirected pattern without self loops. Raises MissingDependency without kahip."""
    try:
        import kahip
    except ImportError as error:
        raise MissingDependency("kahip", f"pip install '.[gnn]' ({error})") from error
    weights = (np.diff(pattern.indptr) + 1).tolist()
    edges = [1] * pattern.nnz
    _, parts = kahip.kaffpa(
        weights, pattern.indptr.tolist(), edges, pattern.indices.tolist(), k, imbalance, True, seed % 2**31, MODES[mode]
    )
    return np.asarray(parts, np.int32)
