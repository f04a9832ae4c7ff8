"""Sparsity-aware row exchange of a distributed sparse product, and the base class of all exchanges.

Process (i, j) computes Z_i = sum of A_iq X_q over the block rows q of its grid column, then sums over its grid row
(Section 4). `Exchange` does that sum, counts bytes and records spans; a subclass decides how rows of X arrive.
`Aware` sends only the rows that the nonzero columns of a block name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from scipy.sparse import csr_array

from suite import accelerator
from suite.core.protocols import Handle, World
from suite.core.trace import EXCHANGE, GATHER, PRODUCT, ROW_REDUCE, WAIT, Trace
from suite.gnn.rank_shard import LocalBlock


class SpanRecorder:
    """Timed spans of one rank, and the bytes that it has sent. With `enabled` false only bytes are counted.

    Attributes:
        clock: Clock of the rank's work.
        marked: The spans, with marks of the clock.
    """

    def __init__(self, world: World) -> None:
        self.rank, self.clock, self.enabled = world.rank, accelerator.Clock(world.device), True
        self.marked, self.bytes_sent = Trace(), 0

    def restart(self) -> None:
        """Forget the spans so far."""
        self.clock.restart()
        self.marked.clear()

    @contextmanager
    def span(self, category: str, size: int = 0) -> Iterator[None]:
        """Time the enclosed block, which sends `size` bytes to other ranks."""
        self.bytes_sent += size
        if not self.enabled:
            yield
            return
        begin = self.clock.mark()
        yield
        self.add(category, begin, size)

    def add(self, category: str, begin: float, size: int = 0) -> None:
        """Record a span from `begin` until now."""
        if self.enabled:
            self.marked.add(self.rank, category, begin, self.clock.mark(), size=size)

    @property
    def trace(self) -> Trace:
        """The spans since the restart, after the device has passed their marks."""
        return self.marked.timed(self.clock.times())


def to_csr_tensor(matrix: csr_array, dtype: torch.dtype, device: Any) -> torch.Tensor | None:
    """The matrix as a sparse CSR tensor, or None if it has no entries.

    Indices have 64 bits on a CPU, whose kernels copy narrower ones, and 32 bits on a GPU.
    """
    if not matrix.nnz:
        return None
    width = torch.int64 if accelerator.on_host(device) else torch.int32
    indptr, indices = (torch.from_numpy(part).to(device, width) for part in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(matrix.data).to(device, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr, indices, values, size=matrix.shape, check_invariants=False)


class Exchange:
    """One distributed sparse product. A call maps X_i (n_i, f) to (A X)_i (n_i, f), equal on all ranks of a grid row.

    With `barrier`, ranks synchronise before every exchange, so that waiting is timed apart from sending. Further
    options go to `configure`, which a subclass defines.

    Attributes:
        matrices: Local matrices, which `configure` adds; None for one without entries.
        buffers: Send and receive buffers, kept from product to product.
    """

    oblivious = False  # whether all rows of a part are sent

    def __init__(
        self,
        block: LocalBlock,
        world: World,
        *,
        recorder: SpanRecorder,
        dtype: torch.dtype,
        barrier: bool = False,
        **options: Any,
    ) -> None:
        self.block, self.world, self.recorder, self.dtype = block, world, recorder, dtype
        self.placement = block.placement
        # every rank makes all groups in one order; its grid column exchanges rows, its grid row sums products
        columns = [world.group(self.placement.column(j)) for j in range(self.placement.replication)]
        rows = [world.group(self.placement.row(i)) for i in range(self.placement.parts)]
        row, column = self.placement.coordinates(world.rank)
        self.group, self.replicas = columns[column], rows[row]
        self.barrier = barrier
        self.world_group = world.group(range(world.size))
        self.matrices: dict[int, torch.Tensor | None] = {}
        self.buffers: dict[tuple[str, int, int], torch.Tensor] = {}
        self.configure(**options)

    def configure(self) -> None:
        """Read the options of this kind of exchange and build its matrices."""
        raise NotImplementedError

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """This process's summand of the product, (n_i, f)."""
        raise NotImplementedError

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.data.contiguous()  # autograd must not count a broadcast of a saved tensor as a change of it
        self.wait_for_all()
        z = self.multiply(x)
        if len(self.replicas.ranks) > 1:
            self.wait_for_all()
            # no bytes: the ring traffic of 2 (c - 1) / c matrices belongs to the library, plans count the input
            with self.recorder.span(ROW_REDUCE):
                self.replicas.all_reduce(z).wait()
        return z

    def wait_for_all(self) -> None:
        """Synchronise all ranks, if `barrier` is set."""
        if self.barrier and self.world.size > 1:
            with self.recorder.span(WAIT):
                self.world_group.all_reduce(torch.zeros(1, device=self.world.device)).wait()

    def matrix(self, block: csr_array) -> torch.Tensor | None:
        return to_csr_tensor(block, self.dtype, self.world.device)

    def buffer(self, use: str, rows: int, width: int) -> torch.Tensor:
        """The buffer (rows, width) of a use, such as "send"."""
        key = use, rows, width
        if key not in self.buffers:
            self.buffers[key] = torch.empty(rows, width, dtype=self.dtype, device=self.world.device)
        return self.buffers[key]

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the local matrices, indices included."""
        parts = [(m.values(), m.col_indices(), m.crow_indices()) for m in self.matrices.values() if m is not None]
        return sum(tensor.nbytes for part in parts for tensor in part)

    @property
    def buffer_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def accumulate(self, z: torch.Tensor | None, matrix: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor | None:
        """z + matrix @ x in place; None stands for zeros."""
        if matrix is None:
            return z
        with self.recorder.span(PRODUCT):
            z = self.or_zeros(z, x.shape[1])  # adding to zeros takes a fifth less time than torch.mm
            return torch.addmm(z, matrix, x, out=z)

    def or_zeros(self, z: torch.Tensor | None, width: int) -> torch.Tensor:
        """z, or zeros (n_i, width) for None."""
        return torch.zeros(self.block.rows, width, dtype=self.dtype, device=self.world.device) if z is None else z


class Aware(Exchange):
    """Sends only needed rows (Section 4, Algorithms 1 and 2). Both forms send the same bytes.

    Options:
        form: "fused" is one uneven all-to-all per grid column. "staged" follows Algorithm 2: for one block row after
            another, its holder sends to each process that needs rows of it, and every receiver waits for them.
        overlap: Multiply the process's own rows while others are in flight; only with form="fused".
    """

    def configure(self, *, form: str = "fused", overlap: bool = False) -> None:
        self.form, self.overlap = form, overlap
        block = self.block
        self.send_rows = torch.from_numpy(block.send_rows).to(self.world.device)
        self.send_counts = block.send_counts.tolist()
        self.recv_counts = block.recv_counts.tolist()
        # two matrices, split at the first halo column: X_i is not copied next to the received rows
        self.matrices[block.row] = self.matrix(csr_array(block.matrix[:, : block.rows]))
        if form == "fused":
            self.matrices[-1] = self.matrix(csr_array(block.matrix[:, block.rows :]))
        else:
            self.matrices |= {q: self.matrix(block.compact(q)) for q, count in enumerate(self.recv_counts) if count}

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1]
        outgoing = self.buffer("send", len(self.send_rows), width)
        halo = self.buffer("receive", self.block.halo, width)
        with self.recorder.span(GATHER):
            torch.index_select(x, 0, self.send_rows, out=outgoing)
        z = self._fused(x, outgoing, halo) if self.form == "fused" else self._staged(x, outgoing, halo)
        return self.or_zeros(z, width)

    def _fused(self, x: torch.Tensor, outgoing: torch.Tensor, halo: torch.Tensor) -> torch.Tensor | None:
        z = None
        with self.recorder.span(EXCHANGE, outgoing.nbytes):
            handle = self.group.all_to_all(halo, outgoing, recv_counts=self.recv_counts, send_counts=self.send_counts)
            if not self.overlap:
                handle.wait()
        z = self.accumulate(z, self.matrices[self.block.row], x)
        if self.overlap:
            with self.recorder.span(EXCHANGE):
                handle.wait()
        return self.accumulate(z, self.matrices[-1], halo)

    def _staged(self, x: torch.Tensor, outgoing: torch.Tensor, halo: torch.Tensor) -> torch.Tensor | None:
        z, column = None, self.group.ranks
        send_parts, recv_parts = torch.split(outgoing, self.send_counts), torch.split(halo, self.recv_counts)
        pending: list[Handle] = []
        for q in range(self.placement.parts):
            if q == self.block.row:
                sends = [(column[i], send_parts[i]) for i in range(self.placement.parts) if self.send_counts[i]]
                with self.recorder.span(EXCHANGE, outgoing.nbytes):
                    pending.append(self.group.pairwise(sends, []))
                z = self.accumulate(z, self.matrices[self.block.row], x)
            elif self.recv_counts[q]:
                with self.recorder.span(EXCHANGE):
                    self.group.pairwise([], [(column[q], recv_parts[q])]).wait()
                z = self.accumulate(z, self.matrices[q], recv_parts[q])
        with self.recorder.span(EXCHANGE):
            for handle in pending:
                handle.wait()
        return z
