"""Partitions that ignore the edges: in vertex order, random, and from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import refuse
from suite.core.protocols import Missing, Ready
from suite.data.reading import readable
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import IntArray, validate_parts


@dataclass(frozen=True)
class Block(Partitioner):
    """Contiguous runs of vertices whose sizes differ by at most one."""

    name: str = "block"
    seedable = False

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32."""
        n = matrix.shape[0]
        return (np.arange(n, dtype=np.int64) * k // max(n, 1)).astype(np.int32)


@dataclass(frozen=True)
class Random(Partitioner):
    """Random assignment whose part sizes differ by at most one: the paper's runs without a partitioner (Section 5)."""

    name: str = "random"

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32."""
        order = np.argsort(np.random.Philox(seed).random_raw(matrix.shape[0]), kind="stable")
        assignment = np.empty(matrix.shape[0], np.int32)
        assignment[order] = Block().parts(matrix, k, seed)
        return assignment


@dataclass(frozen=True)
class External(Partitioner):
    """A partition from a text file of another program, such as Graph-VB or gpmetis.

    `file` holds integers separated by white space: the part of each vertex, or, for vertices numbered part by part, the
    number of vertices of each part. A file of n = k numbers holds parts, unless its name ends in "sizes".
    """

    file: str
    name: str = "external"
    seedable = False

    def probe(self) -> Ready | Missing:
        return Ready() if Path(self.file).is_file() else Missing(f"there is no file {self.file}")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32.

        Raises:
            InvalidRequest: The file is missing, is no list of integers, has the wrong length or sum, or names a part
                out of range.
        """
        n, path = matrix.shape[0], Path(self.file)
        with readable(path.name, "a text file of integers"):
            numbers = np.array(path.read_text(encoding="utf-8").split(), np.int64)
        if len(numbers) == n and not (n == k and self.file.endswith("sizes")):
            return validate_parts(numbers, n, k).astype(np.int32)
        rule = f"the part of each of {n} vertices, or {k} sizes that sum to {n}"
        what = f"{path.name}: {len(numbers)} numbers that sum to {int(numbers.sum())}"
        refuse([(len(numbers) != k or (numbers < 0).any() or int(numbers.sum()) != n, what, rule)])
        return np.repeat(np.arange(k, dtype=np.int32), numbers)
