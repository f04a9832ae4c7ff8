"""Protocol of partitioners, statistics of a partition, and the cache of partitions."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array

from suite.config.protocols import PartitionMethod
from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import Rows, check
from suite.gnn.plan import Volumes, check_parts, volumes

FORMAT = 1  # of a kept partition
HERE = Path(__file__).parent


class Partitioner(PartitionMethod, Protocol):
    """Which part each vertex is in. A frozen dataclass: the fields that it compares by are the settings that a kept
    partition goes by.

    A class that inherits from this one has defaults of `name` and `notes`.

    Attributes:
        objective: The quantity that it minimises.
        seedable: Whether another seed gives another partition.
        packages: Distributions whose releases decide what it finds, none where it is as quick to ask again as to look
            up.
    """

    @property
    def objective(self) -> str: ...

    @property
    def seedable(self) -> bool: ...

    @property
    def packages(self) -> tuple[str, ...]: ...

    def probe(self) -> Ready | Missing:
        """Missing without a package or file that it needs."""

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32 part ids below k. matrix: (n, n), of which the pattern alone matters; of a directed one
        pattern(A + A^T) is partitioned. The same arguments give the same parts."""


@dataclass(frozen=True)
class Quality:
    """Costs of a partition, for the one product matrix @ X in 1D.

    Attributes:
        nnz_imbalance, vertex_imbalance: Percent by which the fullest part exceeds the mean of entries, and of vertices.
        edge_cut: Entries between different parts, so that an undirected edge counts twice.
        total, max_send, max_receive, max_pair: Rows moved by all, most by one sender, receiver, and between two of
            them.
        imbalance: Percent by which the busiest sender exceeds the mean (Table 2).
    """

    nnz_imbalance: float
    vertex_imbalance: float
    edge_cut: int
    total: int
    max_send: int
    max_receive: int
    max_pair: int
    imbalance: float

    @classmethod
    def of(cls, found: Volumes) -> Quality:
        return cls(
            nnz_imbalance=_excess(found.nonzeros.sum(axis=1)),
            vertex_imbalance=_excess(found.rows),
            edge_cut=int(found.nonzeros.sum() - np.trace(found.nonzeros)),
            total=found.total,
            max_send=int(found.send.max()),
            max_receive=int(found.receive.max()),
            max_pair=found.pair,
            imbalance=found.imbalance,
        )


def _excess(amounts: Rows) -> float:
    return float(100 * (amounts.max() / amounts.mean() - 1)) if amounts.sum() else 0.0


@dataclass(frozen=True, eq=False)
class Partition:
    """parts: (n,) int32, below k; seconds: of the partitioner, when it ran; cached: whether that was another time."""

    parts: Rows
    k: int
    seconds: float
    cached: bool
    quality: Quality
    notes: tuple[str, ...] = ()


def partition(partitioner: Partitioner, matrix: csr_array, k: int, *, seed: int, folder: Path | None) -> Partition:
    """The partition of `matrix` into k parts. A costly one is kept in `folder`, and taken from there when the pattern,
    k, the partitioner, its settings and packages, the seed and the code here are the same.

    Raises MissingDependency where the partitioner cannot run, InvalidRequest for a matrix that it cannot partition."""
    check(matrix, k, seed)
    ready = partitioner.probe()
    if isinstance(ready, Missing):
        raise MissingDependency(f"what partitioner={partitioner.name} needs", ready.reason)
    cache_file = None
    if folder is not None and partitioner.packages:
        key = fingerprint(partitioner, matrix, k, seed)
        cache_file = folder / f"{partitioner.name}-{k}-{key[:20]}.npz"
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, InvalidRequest):
            parts, seconds, notes = _read(cache_file, key, matrix.shape[0], k)
            return Partition(parts, k, seconds, True, Quality.of(volumes(matrix, parts, k)), notes)
    start = time.perf_counter()
    parts = partitioner.parts(matrix, k, seed if partitioner.seedable else 0)
    seconds = time.perf_counter() - start
    quality, notes = Quality.of(volumes(matrix, parts, k)), tuple(partitioner.notes())
    if cache_file is not None:
        _write(cache_file, key, parts, seconds, notes)
    return Partition(parts, k, seconds, False, quality, notes)


def fingerprint(partitioner: Partitioner, matrix: csr_array, k: int, seed: int) -> str:
    """Hex sha256 of all that decides the parts; a loop or the order of a row's entries changes it, a value does not."""
    digest = hashlib.sha256()
    for array in (matrix.indptr, matrix.indices):
        digest.update(np.ascontiguousarray(array, np.int64).data)
    said = {
        "partitioner": f"{type(partitioner).__module__}.{type(partitioner).__qualname__}",
        "settings": {f.name: getattr(partitioner, f.name) for f in fields(partitioner) if f.compare}
        if is_dataclass(partitioner)
        else repr(partitioner),
        "packages": {name: _release(name) for name in partitioner.packages},
        "shape": [int(size) for size in matrix.shape],
        "k": int(k),
        "seed": int(seed) if partitioner.seedable else None,
    }
    digest.update(json.dumps(said, sort_keys=True, default=repr).encode())
    for file in sorted(HERE.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _release(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _read(path: Path, key: str, n: int, k: int) -> tuple[Rows, float, tuple[str, ...]]:
    with np.load(path, allow_pickle=False) as archive:
        if int(archive["format"]) != FORMAT or archive["key"].tobytes().decode() != key:
            raise ValueError(f"{path.name} is of another partition")
        parts = check_parts(archive["parts"], n, k).astype(np.int32)
        seconds = float(archive["seconds"])
        notes = json.loads(archive["notes"].tobytes().decode())
        if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes) and seconds >= 0):
            raise ValueError(f"{path.name} is damaged")
        return parts, seconds, tuple(notes)


def _write(path: Path, key: str, parts: Rows, seconds: float, notes: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(
                file,
                format=np.int64(FORMAT),
                key=np.frombuffer(key.encode(), np.uint8),
                parts=parts,
                seconds=np.float64(seconds),
                notes=np.frombuffer(json.dumps(notes).encode(), np.uint8),
            )
        os.replace(scratch, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(scratch)
        raise
