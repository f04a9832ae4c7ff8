"""Partitions that ignore the edges: in vertex order, random, and from a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import IntArray, validate_input
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import validate_parts

INTEGER = re.compile(r"[+-]?0*([0-9]{1,10})")
LARGEST = 2**31 - 1  # part ids and vertex numbers are int32


@dataclass(frozen=True)
class Block(Partitioner):
    """Contiguous runs of vertices whose sizes differ by at most one."""

    name: str = "block"
    objective = "none: the given order of vertices"
    seedable = False
    packages = ()

    def probe(self) -> Ready | Missing:
        return Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32."""
        validate_input(matrix, k, seed)
        n = matrix.shape[0]
        return (np.arange(n, dtype=np.int64) * k // max(n, 1)).astype(np.int32)


@dataclass(frozen=True)
class Random(Partitioner):
    """Random assignment whose part sizes differ by at most one: the paper's runs without a partitioner (Section 5)."""

    name: str = "random"
    objective = "none: equal numbers of vertices"
    seedable = True
    packages = ()

    def probe(self) -> Ready | Missing:
        return Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32."""
        validate_input(matrix, k, seed)
        order = np.argsort(np.random.Philox(seed).random_raw(matrix.shape[0]), kind="stable")
        assignment = np.empty(matrix.shape[0], np.int32)
        assignment[order] = Block().parts(matrix, k, seed)
        return assignment


@dataclass(frozen=True)
class External(Partitioner):
    """A partition from a text file of another program, such as Graph-VB or gpmetis.

    Attributes:
        file: Path of a text file of integers separated by white space.
        form: "parts": the file lists the part of each vertex. "sizes": it lists the number of vertices of each part,
            for vertices numbered part by part. "auto": sizes if the file does not hold n numbers, or if it holds n = k
            numbers and its name ends in "sizes"; otherwise parts.
    """

    file: str
    form: str = "auto"
    name: str = "external"
    objective = "unknown: another program's"
    seedable = False
    packages = ()

    def __post_init__(self) -> None:
        if self.form not in ("auto", "parts", "sizes"):
            raise InvalidRequest(f"form={self.form}", rule="auto, parts or sizes", legal="form=auto")

    def probe(self) -> Ready | Missing:
        return Ready() if Path(self.file).is_file() else Missing(f"there is no file {self.file}")

    def parts(self, matrix: csr_array, k: int, seed: int) -> IntArray:
        """(n,) int32.

        Raises:
            InvalidRequest: The file is missing, is no list of integers, has the wrong length or sum, or names a part
                out of range.
        """
        validate_input(matrix, k, seed)
        n, numbers = matrix.shape[0], self._numbers()
        sizes = self.form == "sizes"
        if self.form == "auto":
            sizes = len(numbers) != n or (Path(self.file).name.endswith("sizes") and n == k)
        if not sizes:
            if len(numbers) != n:
                what = f"{Path(self.file).name}: {len(numbers)} part ids for {n} vertices"
                raise InvalidRequest(what, rule="one part id per vertex", legal=f"a file of {n} numbers")
            return validate_parts(numbers, n, k).astype(np.int32)
        if len(numbers) != k or (numbers < 0).any() or int(numbers.sum()) != n:
            what = f"{Path(self.file).name}: {len(numbers)} numbers that sum to {int(numbers.sum())}"
            rule = f"the part of each of {n} vertices, or {k} sizes of parts that sum to {n}"
            raise InvalidRequest(what, rule=rule, legal=f"a partition of {n} vertices into {k} parts")
        return np.repeat(np.arange(k, dtype=np.int32), numbers)

    def _numbers(self) -> IntArray:
        path = Path(self.file)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path.name} cannot be read: {error}", rule="a text file of integers") from error
        words = [(line, word) for line, words in enumerate(text.split("\n"), start=1) for word in words.split()]
        for number, (line, word) in enumerate(words, start=1):
            match = INTEGER.fullmatch(word)
            if not match or int(match[1]) > LARGEST:
                what = f"{path.name}: number {number} of {len(words)} is {word[:20]!r}, in line {line}"
                raise InvalidRequest(what, rule=f"integers up to {LARGEST}", legal="0")
        return np.array([int(word) for _, word in words], np.int64)
