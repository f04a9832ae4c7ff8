"""Transport and ring collectives over plain host memory, for ranks without torch.

Emulated ranks sleep instead of computing, so they do not need torch. On two cores, sixteen ranks start in 2 s without
torch and in 15 s with it. Their messages have the sizes and the transport of real ranks, and arbitrary content.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from suite.comm.p2p.message import EAGER_BYTES, RAW_BYTES
from suite.comm.p2p.mpi import MpiRanks, allocate, mpi_buffer
from suite.comm.p2p.polling import wait_until
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Handle


class HostDevice:
    """Device of plain memory."""

    type = "cpu"


class HostBuffer:
    """`size` bytes with the interface of a tensor of bytes, as far as channels use it."""

    __slots__ = ("memory", "nbytes", "shape")
    dtype, device = RAW_BYTES, HostDevice

    def __init__(self, size: int) -> None:
        self.memory, self.nbytes, self.shape = allocate(size), size, (size,)

    def new_empty(self, shape: Sequence[int], dtype: str = RAW_BYTES, device: Any = HostDevice) -> HostBuffer:
        (size,) = shape
        return HostBuffer(size)

    def data_ptr(self) -> int:
        return int(self.memory.address)

    def detach(self) -> HostBuffer:
        return self

    contiguous = cpu = detach


class RingTraffic:
    """Messages of a ring all-reduce of one buffer over n ranks.

    In each of 2 (n - 1) steps every rank sends the slice of 1/n of the buffer that it received last to the next rank.
    Nothing is added: the content is arbitrary, and the cost model includes the additions.

    Attributes:
        sent_bytes: Bytes that this rank has sent.
    """

    def __init__(self, comm: Any, ranks: Sequence[int], buffer: HostBuffer, tag: int) -> None:
        count, self.slice_index = len(ranks), ranks.index(comm.Get_rank())
        self.comm, self.tag, self.steps_left = comm, tag, 2 * (count - 1)
        self.source, self.target = ranks[self.slice_index - 1], ranks[(self.slice_index + 1) % count]
        self.buffer = buffer  # alive until the last slice is received
        cuts = [index * buffer.nbytes // count for index in range(count + 1)]
        self.slices = [(buffer.data_ptr() + start, end - start) for start, end in pairwise(cuts)]
        self.sent_bytes = 0
        self.requests: list[Any] = []

    def _step(self) -> None:
        count = len(self.slices)
        address, size = self.slices[self.slice_index % count]
        self.slice_index -= 1
        received = mpi_buffer(*self.slices[self.slice_index % count])
        self.requests = [
            self.comm.Irecv(received, source=self.source, tag=self.tag),
            self.comm.Isend(mpi_buffer(address, size), dest=self.target, tag=self.tag),
        ]
        self.sent_bytes += size
        self.steps_left -= 1

    def done(self) -> bool:
        while all(request.Test() for request in self.requests):
            if not self.steps_left:
                return True
            self._step()
        return False

    def wait(self) -> None:
        wait_until(self.done, lambda: None)


class RingGroup:
    """Ranks of a world without torch, in ring order."""

    def __init__(self, comm: Any, ranks: Sequence[int], tag: int) -> None:
        self.comm, self.ranks, self.tag = comm, tuple(ranks), tag

    def all_reduce(self, tensor: HostBuffer, op: str = "sum") -> Handle:
        return RingTraffic(self.comm, self.ranks, tensor, self.tag)

    def broadcast(self, tensor: HostBuffer, root: int) -> Handle:
        raise InvalidRequest("a broadcast of plain memory", rule="ranks without torch have no weights to broadcast")


class HostMemoryWorld(MpiRanks):
    """Ranks without torch. A ring of two ranks serves as the pair exchange."""

    def __init__(
        self, *, eager_bytes: int = EAGER_BYTES, pair_exchange: bool = True, order: str = "any", device: str = "cpu"
    ) -> None:
        super().__init__(eager_bytes=eager_bytes, order=order, device=HostDevice)

    def group(self, ranks: Sequence[int]) -> Group:
        key = tuple(ranks)
        ring = RingGroup(self.pair_comm, key, len(self.groups))
        return self.groups.setdefault(key, ring)  # type: ignore[arg-type]  # has all_reduce and broadcast only

    def buffer(self, size: int) -> HostBuffer:
        return HostBuffer(size)
