"""Transport and ring collectives over plain host memory, for ranks without torch.

An emulated rank computes nothing, and sixteen of them on two cores need 15 s to load torch and 2 s to start without it.
Its messages have the size and the path of a real rank's messages; their content is arbitrary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from suite.comm.p2p.message import INLINE, PLAIN, check_inline
from suite.comm.p2p.mpi import MpiTransport, all_reduce_scalar, allocate, communicator, memory
from suite.comm.p2p.polling import until
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Handle, Transport


class Host:
    """Where plain memory lies."""

    type = "cpu"


class HostBuffer:
    """`size` bytes that look to a channel like a tensor of bytes."""

    __slots__ = ("held", "nbytes", "shape")
    dtype, device = PLAIN, Host

    def __init__(self, size: int) -> None:
        self.held, self.nbytes, self.shape = allocate(size), size, (size,)

    def new_empty(self, shape: Sequence[int], dtype: str = PLAIN, device: Any = Host) -> HostBuffer:
        (size,) = shape
        return HostBuffer(size)

    def data_ptr(self) -> int:
        return int(self.held.address)

    def numel(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1

    def dim(self) -> int:
        return 1

    def detach(self) -> HostBuffer:
        return self

    contiguous = cpu = detach


class RingTraffic:
    """The traffic of one ring all-reduce of a buffer over n ranks. sent: bytes, by this rank so far.

    In each of 2 (n - 1) steps every rank sends the n-th part that it took last to the next rank. The bytes move and
    are not added: their content is arbitrary, and the cost model includes the additions."""

    def __init__(self, comm: Any, ranks: Sequence[int], buffer: HostBuffer, tag: int) -> None:
        count, self.at = len(ranks), ranks.index(comm.Get_rank())
        self.comm, self.tag, self.left = comm, tag, 2 * (count - 1)
        self.before, self.after = ranks[self.at - 1], ranks[(self.at + 1) % count]
        self.buffer = buffer  # alive until the last part has come
        cuts = [part * buffer.nbytes // count for part in range(count + 1)]
        self.parts = [(buffer.data_ptr() + a, b - a) for a, b in pairwise(cuts)]
        self.sent = 0
        self.requests: list[Any] = []

    def _step(self) -> None:
        count = len(self.parts)
        address, size = self.parts[self.at % count]
        self.at -= 1
        come = memory(*self.parts[self.at % count])
        self.requests = [
            self.comm.Irecv(come, source=self.before, tag=self.tag),
            self.comm.Isend(memory(address, size), dest=self.after, tag=self.tag),
        ]
        self.sent += size
        self.left -= 1

    def done(self) -> bool:
        while all(request.Test() for request in self.requests):
            if not self.left:
                return True
            self._step()
        return False

    def wait(self) -> None:
        until(self.done, lambda: None)


class RingGroup:
    """Some ranks of a world without torch, in rank order."""

    def __init__(self, comm: Any, ranks: Sequence[int], tag: int) -> None:
        self.comm, self.ranks, self.tag = comm, tuple(ranks), tag

    def all_reduce(self, tensor: HostBuffer, op: str = "sum") -> Handle:
        return RingTraffic(self.comm, self.ranks, tensor, self.tag)

    def broadcast(self, tensor: HostBuffer, root: int) -> Handle:
        raise InvalidRequest("a broadcast of plain memory", rule="ranks without torch have no weights to agree on")


class PlainWorld:
    """The ranks that mpiexec started, without torch. pair_exchange: a ring of two is one."""

    backend, staged = "mpi", False
    device = landing = Host

    def __init__(
        self, *, inline: int = INLINE, pair_exchange: bool = True, order: str = "any", device: str = "cpu"
    ) -> None:
        check_inline(inline)
        self.inline, self.order = inline, order
        self.comm, self.rings = communicator(), communicator()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.known: dict[tuple[int, ...], Group] = {}

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        return MpiTransport(self, before, after, stages)

    def group(self, ranks: Sequence[int]) -> Group:
        key = tuple(ranks)
        ring = RingGroup(self.rings, key, len(self.known))
        return self.known.setdefault(key, ring)  # type: ignore[arg-type]  # reduces and broadcasts alone

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        return all_reduce_scalar(self.comm, value, op, progress)

    def buffer(self, size: int) -> HostBuffer:
        return HostBuffer(size)

    def close(self) -> None:
        self.comm.Barrier()
        self.comm.Free()
        self.rings.Free()
