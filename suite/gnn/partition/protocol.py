"""Partitioner protocol, statistics of a partition, and the cache of partitions."""

from __future__ import annotations

import hashlib
import io
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import ClassVar, Protocol

import numpy as np
from scipy.sparse import csr_array

from suite.config.protocols import PartitionMethod
from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.files import write_atomically
from suite.core.protocols import Missing, Ready
from suite.gnn.plan import IntArray, Volumes, count_volumes, excess, validate_parts

SOURCE_FOLDER = Path(__file__).parent


class Partitioner(PartitionMethod, Protocol):
    """Assigns vertices to parts. Implementations are frozen dataclasses, whose repr enters the cache key.

    A subclass inherits the defaults of `name`, `seedable`, `packages` and `probe`.

    Attributes:
        seedable: Whether another seed gives another partition.
        packages: Packages whose release affects the result. Empty for a partitioner too fast to be worth caching.
    """

    seedable: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ()

    def probe(self) -> Ready | Missing:
        """Missing if a required package or file is absent."""
        absent = [name for name in self.packages if not find_spec(name)]
        return Missing(f"not installed: {', '.join(absent)}") if absent else Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32 part ids below k. Only the pattern of `matrix` (n, n) matters; a directed one is partitioned as
        A + A^T. The result depends on nothing but the arguments."""


def quality_of(volumes: Volumes) -> dict[str, float]:
    """Costs of a partition for one product matrix @ X in 1D.

    Imbalances are percent by which the fullest part exceeds the mean: in entries, in vertices, and in sent rows (Table
    2). An undirected edge that is cut counts twice. The other numbers are rows: sent by all parts, by the busiest
    sender, to the busiest receiver, and from one part to one other.
    """
    return {
        "nnz_imbalance": excess(volumes.nonzeros.sum(axis=1)),
        "vertex_imbalance": excess(volumes.rows),
        "edge_cut": float(volumes.nonzeros.sum() - np.trace(volumes.nonzeros)),
        "total": float(volumes.total),
        "max_send": float(volumes.send.max()),
        "max_receive": float(volumes.receive.max()),
        "max_pair": float(volumes.max_pair),
        "imbalance": volumes.imbalance,
    }


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition with its costs.

    Attributes:
        parts: (n,) int32 part ids below k.
        seconds: Time of the partitioner when it ran.
        cached: Whether the partition was read from the cache.
    """

    parts: IntArray
    k: int
    seconds: float
    cached: bool
    quality: dict[str, float]


def partition(partitioner: Partitioner, matrix: csr_array, k: int, *, seed: int, folder: Path | None) -> Partition:
    """Partition `matrix` into k parts, or read the partition from the cache.

    A partitioner with `packages` is cached in `folder` under a key of the pattern, k, the seed, the partitioner, its
    settings, its packages and the source code of this folder. `folder=None` disables the cache.

    Raises MissingDependency where the partitioner cannot run.
    """
    n = matrix.shape[0]
    ready = partitioner.probe()
    if isinstance(ready, Missing):
        raise MissingDependency(f"a requirement of partitioner={partitioner.name}", ready.reason)
    cache_file = None
    if folder is not None and partitioner.packages:
        key = fingerprint(partitioner, matrix, k, seed)
        cache_file = folder / f"{partitioner.name}-{k}-{key}.npz"
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, InvalidRequest):
            with np.load(cache_file, allow_pickle=False) as archive:
                parts, seconds = validate_parts(archive["parts"], n, k).astype(np.int32), float(archive["seconds"])
            return Partition(parts, k, seconds, True, quality_of(count_volumes(matrix, parts, k)))
    start = monotonic()
    parts = partitioner.parts(matrix, k, seed if partitioner.seedable else 0)
    seconds = monotonic() - start
    if cache_file is not None:
        np.savez(packed := io.BytesIO(), parts=parts, seconds=seconds)
        write_atomically(cache_file, packed.getvalue())
    return Partition(parts, k, seconds, False, quality_of(count_volumes(matrix, parts, k)))


def fingerprint(partitioner: Partitioner, matrix: csr_array, k: int, seed: int) -> str:
    """SHA-256 in hex of all inputs of a partition. Self loops and the order of entries count, their values do not."""
    digest = hashlib.sha256()
    for array in (matrix.indptr, matrix.indices):
        digest.update(np.ascontiguousarray(array, np.int64).data)
    packages = [(name, version(name)) for name in partitioner.packages]
    inputs = type(partitioner), partitioner, packages, matrix.shape, k, seed if partitioner.seedable else None
    digest.update(repr(inputs).encode())
    for file in sorted(SOURCE_FOLDER.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
