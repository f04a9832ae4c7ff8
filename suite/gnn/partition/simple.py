"""Partitions that ignore edges: in the given order, random, and from a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest
from suite.core.protocols import Missing, Ready
from suite.gnn.partition.pattern import Rows, check
from suite.gnn.partition.protocol import Partitioner
from suite.gnn.plan import check_parts

WHOLE = re.compile(r"[+-]?0*([0-9]{1,10})")
LARGEST = 2**31 - 1  # part ids are int32, and sizes count vertices that int32 numbers


@dataclass(frozen=True)
class Block(Partitioner):
    """Runs of vertices in the order that they are numbered in, of equal numbers but for one."""

    name: str = "block"
    objective = "none: the order given"
    seedable = False
    packages = ()

    def probe(self) -> Ready | Missing:
        return Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32."""
        check(matrix, k, seed)
        n = matrix.shape[0]
        return (np.arange(n, dtype=np.int64) * k // max(n, 1)).astype(np.int32)


@dataclass(frozen=True)
class Random(Partitioner):
    """Vertices by chance, equal numbers but for one: what the paper's rows without a partitioner have (Section 5
    permutes at random)."""

    name: str = "random"
    objective = "none: equal numbers of vertices"
    seedable = True
    packages = ()

    def probe(self) -> Ready | Missing:
        return Ready()

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32."""
        check(matrix, k, seed)
        order = np.argsort(np.random.Philox(seed).random_raw(matrix.shape[0]), kind="stable")
        assignment = np.empty(matrix.shape[0], np.int32)
        assignment[order] = Block().parts(matrix, k, seed)
        return assignment


@dataclass(frozen=True)
class External(Partitioner):
    """A partition that another program left in a text file, such as Graph-VB's or gpmetis'.

    Attributes:
        file: Whole numbers between blanks or line ends.
        form: `parts` has the part of each vertex, in their order; `sizes` the number of vertices of each part, for
            vertices that are numbered part by part; `auto` takes a file whose numbers are as many as parts and sum to
            the vertices, and a name that ends in sizes or whose length is not n, for sizes.
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

    def parts(self, matrix: csr_array, k: int, seed: int) -> Rows:
        """(n,) int32. Raises InvalidRequest for a file that is not there, is no list of whole numbers, has another
        length, sum or part ids out of range."""
        check(matrix, k, seed)
        n, numbers = matrix.shape[0], self._numbers()
        sizes = self.form == "sizes"
        if self.form == "auto":
            sizes = len(numbers) != n or (Path(self.file).name.endswith("sizes") and n == k)
        if not sizes:
            return check_parts(self._long(numbers, n), n, k).astype(np.int32)
        if len(numbers) != k or (numbers < 0).any() or int(numbers.sum()) != n:
            what = f"{Path(self.file).name}: {len(numbers)} numbers that sum to {int(numbers.sum())}"
            rule = f"the part of each of {n} vertices, or {k} sizes of parts that sum to {n}"
            raise InvalidRequest(what, rule=rule, legal=f"a partition of {n} vertices into {k} parts")
        return np.repeat(np.arange(k, dtype=np.int32), numbers)

    def _long(self, numbers: Rows, n: int) -> Rows:
        if len(numbers) != n:
            what = f"{Path(self.file).name}: {len(numbers)} part ids for {n} vertices"
            raise InvalidRequest(what, rule="one part id per vertex", legal=f"a file of {n} numbers")
        return numbers

    def _numbers(self) -> Rows:
        path = Path(self.file)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path.name} cannot be read: {error}", rule="a text file of whole numbers") from error
        words = [(line, word) for line, words in enumerate(text.split("\n"), start=1) for word in words.split()]
        for number, (line, word) in enumerate(words, start=1):
            match = WHOLE.fullmatch(word)
            if not match or int(match[1]) > LARGEST:
                what = f"{path.name}: number {number} of {len(words)} is {word[:20]!r}, in line {line}"
                raise InvalidRequest(what, rule=f"whole numbers up to {LARGEST}", legal="0")
        return np.array([int(word) for _, word in words], np.int64)
