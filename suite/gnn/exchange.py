"""Sparsity-aware exchange of rows for a distributed sparse product, and the parts that all exchanges share.

A product of process (i, j) is Z_i = sum of A_iq X_q over the block rows q that its column multiplies, then summed over
the row of the grid (Section 4). `Exchange` does that sum, counts bytes and tells time apart; how rows of X come is each
exchange's own. `Aware` sends the rows that a block's nonzero columns name and no others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from scipy.sparse import csr_array

from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Handle, World
from suite.core.trace import EXCHANGE, GATHER, PRODUCT, ROW_REDUCE, WAIT, Trace
from suite.gnn.local_block import Share
from suite.gnn.plan import Placement, check_form


class Watch:
    """One rank's spans, and the bytes it has handed to others. `on` can be false: then nothing is written down."""

    def __init__(self, world: World) -> None:
        self.rank, self.device, self.on = world.rank, world.device, True
        self.trace, self.sent = Trace(), 0

    @contextmanager
    def span(self, category: str, size: int = 0) -> Iterator[None]:
        """Times what is done inside; `size` bytes go to others meanwhile."""
        self.sent += size
        if not self.on:
            yield
            return
        begin = self.now()
        yield
        self.add(category, begin, size)

    def add(self, category: str, begin: float, size: int = 0) -> None:
        """From `begin` until now."""
        if self.on:
            self.trace.add(self.rank, category, begin, self.now(), size=size)

    def now(self) -> float:
        """When all that was asked of the device has ended, on the clock of perf_counter."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


def groups(world: World, placement: Placement) -> tuple[Group, Group]:
    """The groups of this rank's column, which exchanges rows and reduces weights, and of its row, which sums products.
    Every rank requests all of them in one order."""
    if world.size != placement.processes:
        raise InvalidRequest(
            f"a placement of {placement.processes} processes in a world of {world.size}", rule="one each"
        )
    columns = [world.group(placement.column(j)) for j in range(placement.replication)]
    rows = [world.group(placement.row(i)) for i in range(placement.parts)]
    row, column = placement.place(world.rank)
    return columns[column], rows[row]


def compressed(matrix: csr_array, dtype: torch.dtype, device: Any) -> torch.Tensor | None:
    """A matrix as torch multiplies it, 64-bit indices on a CPU, whose kernels would copy narrower ones; None without
    entries."""
    if not matrix.nnz:
        return None
    width = torch.int32 if torch.device(device).type == "cuda" else torch.int64
    indptr, indices = (torch.from_numpy(part).to(device, width) for part in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(matrix.data).to(device, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, indices, values, size=matrix.shape, check_invariants=False)


class Exchange:
    """One distributed product. Call it with X_i (n_i, f); gives (A X)_i (n_i, f), the same on all of the row's ranks.

    barrier: ranks meet before every exchange, so that waiting for the slowest is told apart from sending
    """

    oblivious = False  # whether whole parts travel

    def __init__(
        self, share: Share, world: World, *, watch: Watch, dtype: torch.dtype, barrier: bool = False, **options: Any
    ) -> None:
        self.share, self.world, self.watch, self.dtype = share, world, watch, dtype
        self.placement = share.placement
        self.group, self.replicas = groups(world, self.placement)
        self.barrier = barrier
        self.meeting = world.group(range(world.size))
        self.options(**options)

    def options(self) -> None:
        """Takes what only some exchanges know, and makes their matrices. Raises Unsupported."""
        raise NotImplementedError

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """This process's part of the sum, (n_i, f)."""
        raise NotImplementedError

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != self.share.rows or x.dtype != self.dtype:
            raise InvalidRequest(
                f"X of shape {tuple(x.shape)} in {x.dtype}", rule=f"({self.share.rows}, f) in {self.dtype} on this rank"
            )
        x = x.data.contiguous()  # a broadcast of what autograd has saved is no change of it
        self.meet()
        z = self.multiply(x)
        if len(self.replicas.ranks) > 1:
            self.meet()
            # what a ring sends of it, 2 (c - 1) / c of the matrix, is the library's; counted is what is brought
            with self.watch.span(ROW_REDUCE):
                self.replicas.all_reduce(z).wait()
        return z

    def meet(self) -> None:
        """Wait for all ranks, where waiting is told apart."""
        if self.barrier and self.world.size > 1:
            with self.watch.span(WAIT):
                self.meeting.all_reduce(torch.zeros(1, device=self.world.device)).wait()

    def matrix(self, block: csr_array) -> torch.Tensor | None:
        return compressed(block, self.dtype, self.world.device)

    @property
    def matrices(self) -> Iterable[torch.Tensor | None]:
        """The local matrices."""
        raise NotImplementedError

    @property
    def kept(self) -> Iterable[torch.Tensor]:
        """Room for rows that it keeps from product to product."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Of its matrices, with their indices."""
        parts = [(m.values(), m.col_indices(), m.crow_indices()) for m in self.matrices if m is not None]
        return sum(_bytes(tensor) for part in parts for tensor in part)

    @property
    def held(self) -> int:
        """Bytes of the room for rows that travel."""
        return sum(map(_bytes, self.kept))

    def add(self, z: torch.Tensor | None, matrix: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
        """z + matrix @ x in place; None stands for zeros."""
        if matrix is None:
            return z
        with self.watch.span(PRODUCT):
            z = self.zeros(z, x.shape[1])  # adding to zeros takes a fifth less than torch.mm
            return torch.addmm(z, matrix, x, out=z)

    def zeros(self, z: torch.Tensor | None, width: int) -> torch.Tensor:
        """z, or zeros of its shape."""
        return torch.zeros(self.share.rows, width, dtype=self.dtype, device=self.world.device) if z is None else z

    def rows(self, count: int, width: int) -> torch.Tensor:
        return torch.empty(count, width, dtype=self.dtype, device=self.world.device)


class Aware(Exchange):
    """Only rows that are needed travel (Section 4, Algorithms 1 and 2).

    form: fused, one all-to-all of uneven parts in each column; staged, as Algorithm 2 prints it: block row after block
    row, its holder sends to each that needs rows of it and every receiver waits for them. The same bytes.
    overlap: the product with its own rows runs while the others travel; fused alone
    """

    def options(self, *, form: str = "fused", overlap: bool = False) -> None:
        check_form(form, oblivious=False, overlap=overlap)
        self.form, self.overlap = form, overlap
        share = self.share
        self.gathered = torch.from_numpy(share.gathered).to(self.world.device)
        self.sent = share.sent.tolist()
        self.received = share.received.tolist()
        # the compact matrix cut where the halo begins: X_i is not copied next to the received rows
        self.local = self.matrix(csr_array(share.matrix[:, : share.rows]))
        if form == "fused":
            self.halo = {-1: self.matrix(csr_array(share.matrix[:, share.rows :]))}
        else:
            self.halo = {q: self.matrix(share.compact(q)) for q, count in enumerate(self.received) if count}
        self.room: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by width: what is sent, and what comes

    @property
    def matrices(self) -> Iterable[torch.Tensor | None]:
        return [self.local, *self.halo.values()]

    @property
    def kept(self) -> Iterable[torch.Tensor]:
        return [room for pair in self.room.values() for room in pair]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        if width not in self.room:
            self.room[width] = self.rows(len(self.gathered), width), self.rows(self.share.halo, width)
        own_rows, halo = self.room[width]
        with self.watch.span(GATHER):
            torch.index_select(x, 0, self.gathered, out=own_rows)
        z = self._fused(x, own_rows, halo) if self.form == "fused" else self._staged(x, own_rows, halo)
        return self.zeros(z, width)

    def _fused(self, x: torch.Tensor, given: torch.Tensor, halo: torch.Tensor) -> torch.Tensor | None:
        z = None
        with self.watch.span(EXCHANGE, _bytes(given)):
            handle = self.group.all_to_all(halo, given, recv_counts=self.received, send_counts=self.sent)
            if not self.overlap:
                handle.wait()
        z = self.add(z, self.local, x)
        if self.overlap:
            with self.watch.span(EXCHANGE):
                handle.wait()
        return self.add(z, self.halo[-1], halo)

    def _staged(self, x: torch.Tensor, given: torch.Tensor, halo: torch.Tensor) -> torch.Tensor | None:
        z, column = None, self.group.ranks
        parts, rooms = torch.split(given, self.sent), torch.split(halo, self.received)
        under_way: list[Handle] = []
        for q in range(self.placement.parts):
            if q == self.share.row:
                sends = [(column[i], parts[i]) for i in range(self.placement.parts) if self.sent[i]]
                with self.watch.span(EXCHANGE, _bytes(given)):
                    under_way.append(self.group.pairwise(sends, []))
                z = self.add(z, self.local, x)
            elif self.received[q]:
                with self.watch.span(EXCHANGE):
                    self.group.pairwise([], [(column[q], rooms[q])]).wait()
                z = self.add(z, self.halo[q], rooms[q])
        with self.watch.span(EXCHANGE):
            for handle in under_way:
                handle.wait()
        return z


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
