"""Exchange plan: the rows of X that each process needs for a sparse product A X.

Vertices are numbered so that those of a part follow one another, and a part's rows of A and X lie with the processes of
its block row. A plan is made once, for the pattern of A never changes in training; it can be saved and looked into, and
every volume follows from it. Sent and received are the rows that a block's nonzero columns name (the indices of the
paper's Algorithms 1 and 2 are swapped in print: rows go to i from q by the columns of block (i, q)).
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from scipy.sparse import csr_array

from suite.core.errors import DamagedRecord, InvalidRequest, UnknownName, Unsupported
from suite.core.files import write_atomically

Rows = Any  # int64 array
ASSIGNMENTS = ("paper", "interleaved")
FORMS = ("fused", "staged")
FORMAT = 1  # of a saved plan


def check_form(form: str, *, oblivious: bool, overlap: bool, assignment: str = "paper", replication: int = 1) -> None:
    """Raises UnknownName for an unknown form of an exchange, Unsupported for an impossible combination."""
    if form not in FORMS:
        raise UnknownName("exchange.form", str(form), FORMS)
    if oblivious and (overlap or form != "staged"):
        what = f"exchange.form={form}, exchange.overlap={overlap} of the oblivious exchange"
        raise Unsupported(what, rule="it broadcasts in stages", legal="exchange.form=staged exchange.overlap=false")
    if oblivious and assignment != "paper" and replication > 1:
        what = f"exchange.assignment={assignment} of the oblivious exchange"
        rule = "a broadcast goes to a whole column of the grid"
        raise Unsupported(what, rule=rule, legal="exchange.assignment=paper")
    if overlap and form != "fused":
        what = f"exchange.overlap with exchange.form={form}"
        raise Unsupported(what, rule="one exchange, to run beside", legal="exchange.form=fused")


@dataclass(frozen=True)
class Placement:
    """A grid of `parts` x `replication` processes (Section 4.2); with replication 1 the 1D algorithm.

    Process (i, j) has the rank i * replication + j and holds block row i. Which column of the grid multiplies a block
    (i, q), `assignment` says. paper: runs of parts // replication block columns, the rest with the last column;
    interleaved: (q + i) mod replication, which spreads the sends of a part over all processes that hold it, where the
    paper's has one of them send everything
    """

    parts: int
    replication: int = 1
    assignment: str = "paper"

    def __post_init__(self) -> None:
        for name in ("parts", "replication"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name}={value}", rule="a whole number, at least 1", legal=f"{name}=1")
        if self.assignment not in ASSIGNMENTS:
            raise UnknownName("exchange.assignment", self.assignment, ASSIGNMENTS)

    @classmethod
    def of(cls, processes: int, replication: int = 1, assignment: str = "paper") -> Placement:
        """Raises InvalidRequest where `replication` does not divide `processes`."""
        placement = cls(processes, replication, assignment)
        if processes % replication:
            legal = max(c for c in range(1, replication) if processes % c == 0)
            raise InvalidRequest(
                f"exchange.replication={replication} of {processes} processes",
                rule="a grid of P/c x c: c divides P (Section 4.2)",
                legal=f"exchange.replication={legal}",
            )
        return cls(processes // replication, replication, placement.assignment)

    @property
    def processes(self) -> int:
        return self.parts * self.replication

    def rank(self, row: int, column: int) -> int:
        return row * self.replication + column

    def place(self, rank: int) -> tuple[int, int]:
        """Block row and column of a rank."""
        return rank // self.replication, rank % self.replication

    def column(self, column: int) -> tuple[int, ...]:
        """The ranks that exchange rows with one another, by block row."""
        return tuple(self.rank(row, column) for row in range(self.parts))

    def row(self, row: int) -> tuple[int, ...]:
        """The ranks that hold block row `row`, and add their products up."""
        return tuple(self.rank(row, column) for column in range(self.replication))

    @cached_property
    def columns(self) -> Rows:
        """(parts, parts): [i, q] is the column that multiplies block (i, q)."""
        i, q = np.indices((self.parts, self.parts))
        if self.assignment == "interleaved":
            return (q + i) % self.replication
        run = max(1, self.parts // self.replication)
        return np.minimum(q // run, self.replication - 1)

    def stages(self, rank: int) -> list[int]:
        """The block rows whose rows of X this rank multiplies, in order (Algorithm 2's q)."""
        row, column = self.place(rank)
        return [int(q) for q in np.flatnonzero(self.columns[row] == column)]


@dataclass(frozen=True, eq=False)
class Volumes:
    """Rows that one product moves between block rows.

    Attributes:
        needed: (k, k), [i, q] distinct rows of part q that part i needs, zero on the diagonal.
        rows: (k,) vertices of each part.
        nonzeros: (k, k) entries of each block.
        placement: Who sends and multiplies what.
    """

    needed: Rows
    rows: Rows
    nonzeros: Rows
    placement: Placement

    @property
    def total(self) -> int:
        return int(self.needed.sum())

    @property
    def pair(self) -> int:
        """The most rows that one part needs of another: cut_P(G), in rows (Section 4.1; G3)."""
        return int(self.needed.max(initial=0))

    @property
    def send(self) -> Rows:
        """(P,) rows that each process sends."""
        return self._by_process(self.needed, axis=0)

    @property
    def receive(self) -> Rows:
        """(P,) rows that each process receives."""
        return self._by_process(self.needed, axis=1)

    @property
    def entries(self) -> Rows:
        """(P,) entries of the matrix that each process multiplies."""
        return self._by_process(self.nonzeros, axis=1)

    @property
    def imbalance(self) -> float:
        """Percent by which the busiest sender exceeds the mean (Table 2); 0 where nothing is sent."""
        send = self.send
        return float(100 * (send.max() / send.mean() - 1)) if send.sum() else 0.0

    @property
    def summed(self) -> Rows:
        """(P,) rows that each process brings to the sum over its block row; none without replication."""
        alone = self.placement.replication == 1
        return np.zeros_like(self.rows) if alone else np.repeat(self.rows, self.placement.replication)

    def oblivious(self) -> Volumes:
        """The same product with every block row sent whole to all that multiply it."""
        needed = np.broadcast_to(self.rows, self.needed.shape).copy()
        np.fill_diagonal(needed, 0)
        return Volumes(needed, self.rows, self.nonzeros, self.placement)

    def on(self, placement: Placement) -> Volumes:
        """The same parts on another grid."""
        if placement.parts != self.placement.parts:
            raise InvalidRequest(
                f"volumes of {self.placement.parts} parts on {placement.parts} block rows", rule="as many"
            )
        return Volumes(self.needed, self.rows, self.nonzeros, placement)

    def _by_process(self, blocks: Rows, *, axis: int) -> Rows:
        columns = self.placement.columns
        own_blocks = [np.where(columns == j, blocks, 0).sum(axis=axis) for j in range(self.placement.replication)]
        return np.stack(own_blocks, axis=1).reshape(-1)


def _reach(matrix: csr_array, parts: Rows, k: int) -> csr_array:
    """(k, n): entries of part i's rows in each column. Its pattern is what part i needs, own columns included."""
    n = matrix.shape[0]
    members = csr_array((np.ones(n, np.int64), (parts, np.arange(n))), shape=(k, n))
    ones = csr_array((np.ones(matrix.nnz, np.int64), matrix.indices, matrix.indptr), shape=matrix.shape)
    reachable = csr_array(members @ ones)
    reachable.sort_indices()
    return reachable


def check_parts(parts: Rows, n: int, k: int) -> Rows:
    """`parts` as int64. Raises InvalidRequest for a wrong length, for ids that are no whole numbers, or out of
    range."""
    assignment = np.asarray(parts)
    if assignment.shape != (n,):
        raise InvalidRequest(
            f"a partition vector of shape {assignment.shape} for {n} vertices", rule="one part id per vertex"
        )
    if not np.issubdtype(assignment.dtype, np.integer):
        raise InvalidRequest(f"a partition vector of {assignment.dtype}", rule="whole numbers")
    bad = np.flatnonzero((assignment < 0) | (assignment >= k))
    if len(bad):
        raise InvalidRequest(
            f"vertex {bad[0]} is in part {assignment[bad[0]]}, and {len(bad) - 1} more are out of range",
            rule=f"part ids from 0 to {k - 1}",
        )
    return assignment.astype(np.int64)


def volumes(matrix: csr_array, parts: Rows, k: int, placement: Placement | None = None) -> Volumes:
    """Of the product matrix @ X, with the rows of both where `parts` (n,) says; 1D without a placement."""
    parts = check_parts(parts, matrix.shape[0], k)
    reach = _reach(matrix, parts, k)
    whose = parts[reach.indices]
    row = np.repeat(np.arange(k), np.diff(reach.indptr))
    place = row * k + whose
    nonzeros = np.bincount(place, weights=reach.data, minlength=k * k).astype(np.int64).reshape(k, k)
    needed = np.bincount(place, minlength=k * k).reshape(k, k)
    np.fill_diagonal(needed, 0)
    return Volumes(needed, np.bincount(parts, minlength=k), nonzeros, placement or Placement(k))


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """One product on a placement.

    Attributes:
        matrix: (n, n) with rows and columns in the order of the parts.
        offsets: (k + 1,) part i has the rows offsets[i] up to offsets[i + 1].
        order: (n,) row number `new` is vertex order[new] of the graph.
    """

    matrix: csr_array
    offsets: Rows
    order: Rows
    placement: Placement

    @classmethod
    def of(cls, matrix: csr_array, parts: Rows, placement: Placement) -> ExchangePlan:
        """Raises InvalidRequest for a matrix that is not square, and for a vector that does not fit."""
        n = matrix.shape[0]
        if matrix.shape != (n, n):
            raise InvalidRequest(f"a matrix of shape {matrix.shape}", rule="square: one row and column per vertex")
        parts = check_parts(parts, n, placement.parts)
        order = np.argsort(parts, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=placement.parts))])
        permuted = csr_array(matrix)[order][:, order]
        permuted.sort_indices()
        return cls(permuted, offsets, order, placement)

    @property
    def vertices(self) -> int:
        return int(self.matrix.shape[0])

    @cached_property
    def parts(self) -> Rows:
        """(n,) the part of each row of the ordered matrix."""
        return np.repeat(np.arange(self.placement.parts), np.diff(self.offsets))

    @cached_property
    def reach(self) -> csr_array:
        return _reach(self.matrix, self.parts, self.placement.parts)

    def needs(self, i: int, q: int) -> Rows:
        """Rows of part q that part i needs, counted from the part's first: NnzCols(i, q), ascending. Of its own part
        too: rows that are there."""
        columns = self.reach.indices[self.reach.indptr[i] : self.reach.indptr[i + 1]]
        start, stop = np.searchsorted(columns, (self.offsets[q], self.offsets[q + 1]))
        columns_of_q: Rows = (columns[start:stop] - self.offsets[q]).astype(np.int64)
        return columns_of_q

    @cached_property
    def volumes(self) -> Volumes:
        return volumes(self.matrix, self.parts, self.placement.parts, self.placement)

    def save(self, path: Path) -> None:
        """One npz file of exactly this name; nothing in it is code."""
        packed = io.BytesIO()
        np.savez(
            packed,
            format=np.int64(FORMAT),
            data=self.matrix.data,
            indices=self.matrix.indices,
            indptr=self.matrix.indptr,
            offsets=self.offsets,
            order=self.order,
            replication=np.int64(self.placement.replication),
            assignment=np.frombuffer(self.placement.assignment.encode(), np.uint8),
        )
        write_atomically(path, packed.getvalue())

    @classmethod
    def load(cls, path: Path) -> ExchangePlan:
        """Raises DamagedRecord for a file that holds no plan."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                if int(archive["format"]) != FORMAT:
                    raise DamagedRecord(
                        f"{path.name}: a plan of format {int(archive['format'])}, this suite reads {FORMAT}"
                    )
                offsets, order = archive["offsets"], archive["order"]
                placement = Placement(
                    len(offsets) - 1, int(archive["replication"]), archive["assignment"].tobytes().decode()
                )
                matrix = csr_array(
                    (archive["data"], archive["indices"], archive["indptr"]), shape=(len(order), len(order))
                )
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DamagedRecord(f"{path.name} is no plan: {error}") from error
        return cls(matrix, offsets, order, placement)
