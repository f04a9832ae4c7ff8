"""Point-to-point transport over MPI.

One receive of constant size is posted per channel. A value whose header and tensors fit in `inline` bytes is one
message; of a larger one the header goes first and every tensor follows from where it lies into a tensor of exact size,
so that neither side keeps state about shapes and nothing large is copied. Bytes only: nothing is pickled, every dtype
passes. Channels carry torch's tensors or plain memory alike, and torch is loaded where tensors are made
(suite/comm/p2p/host_memory.py).
"""

from __future__ import annotations

import atexit
import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from suite.comm.p2p.message import CAPACITY, CLOSING, INLINE, check_inline, pack, receiver, unpack
from suite.comm.p2p.polling import until
from suite.comm.rendezvous.process_exit import LEAVE, closed_early, deserted, raised
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.core.protocols import Group, Handle, Tensor, Transport, Value

if TYPE_CHECKING:
    from suite.comm.p2p.host_memory import PlainWorld

_HEAD, _BODY = 1, 2  # tags

NewBuffer = Callable[[int], Tensor]
allocate = MPI.buffer.allocate  # (size) -> this many uninitialised bytes


def tensor_buffer(size: int) -> Tensor:
    """`size` bytes on the host, as torch has them."""
    import torch

    return torch.empty(size, dtype=torch.uint8)


def communicator() -> Any:
    """All ranks, apart from every other communicator."""
    return MPI.COMM_WORLD.Dup()


def all_reduce_scalar(comm: Any, value: float, op: str, progress: Callable[[], None]) -> float:
    """The sum or maximum of one number per rank, over MPI: it takes 20 us, where gloo takes a millisecond."""
    local, reduced = array("d", [value]), array("d", [0.0])
    mpi_op = {"sum": MPI.SUM, "max": MPI.MAX}[op]
    until(comm.Iallreduce([local, MPI.DOUBLE], [reduced, MPI.DOUBLE], mpi_op).Test, progress)
    return reduced[0]


def _bytes(tensor: Tensor) -> Any:
    """The memory of a contiguous tensor as an MPI message."""
    return memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def memory(address: int, size: int) -> Any:
    """`size` bytes at `address` as an MPI message."""
    return [MPI.buffer.fromaddress(address, size), size, MPI.BYTE]


def _finish_kernels() -> None:
    import torch

    torch.cuda.current_stream().synchronize()


class _Incoming(NamedTuple):
    op: Op
    value: Value
    requests: list[Any]


class _Inbound:
    """The channel from one neighbour: a posted receive, and values whose tensors are still coming."""

    def __init__(self, comm: Any, source: int, inline: int, device: Any, new_buffer: NewBuffer = tensor_buffer) -> None:
        self.comm, self.source, self.inline, self.device = comm, source, inline, device
        self.buffer = new_buffer(inline)
        self.view = memoryview(MPI.buffer.fromaddress(self.buffer.data_ptr(), inline))  # type: ignore[arg-type]
        self.coming: deque[_Incoming] = deque()
        self.ended = False  # the neighbour has closed
        self.posted: Any = None
        self._post()

    def _post(self) -> None:
        self.posted = self.comm.Irecv(_bytes(self.buffer), source=self.source, tag=_HEAD)

    def poll(self, mailbox: dict[Op, Value]) -> None:
        if self.posted is None and not self.ended and self._held(mailbox) < CAPACITY:
            self._post()
        while self.posted is not None and self.posted.Test():
            op, value, follow = unpack(self.buffer, self.view, self.device)
            if op == CLOSING:
                self.ended, self.posted = True, None
                break
            if follow and self.device.type == "cuda":
                _finish_kernels()  # kernels may still read the memory it was given
            requests = [self.comm.Irecv(_bytes(tensor), source=self.source, tag=_BODY) for tensor in follow]
            self.coming.append(_Incoming(op, value, requests))
            self.posted = None
            if op.kind is not Kind.EVALUATE or self._held(mailbox) < CAPACITY:
                self._post()
        while self.coming and all(request.Test() for request in self.coming[0].requests):
            op, value, _ = self.coming.popleft()
            mailbox[op] = value

    def _held(self, mailbox: dict[Op, Value]) -> int:
        """Values of an evaluation that are here and unused: with CAPACITY of them the channel takes no more."""
        return len(self.coming) + sum(op.kind is Kind.EVALUATE for op in mailbox)

    def close(self) -> None:
        posted = [] if self.posted is None else [self.posted]
        for request in [*posted, *(request for coming in self.coming for request in coming.requests)]:
            request.Cancel()
            request.Wait()


class _Outbound:
    """The channel to one neighbour: what is still being sent, kept alive until MPI has let go of it."""

    def __init__(self, comm: Any, target: int, inline: int, new_buffer: NewBuffer = tensor_buffer) -> None:
        self.comm, self.target, self.inline, self.new_buffer = comm, target, inline, new_buffer
        self.sending: deque[tuple[list[Any], Any]] = deque()
        self.spare: list[Tensor] = []

    def send(self, op: Op, value: Value) -> None:
        # a synchronous-mode send completes when it is received: that is how an evaluation counts what waits
        post = self.comm.Issend if op.kind is Kind.EVALUATE else self.comm.Isend
        buffer = self.spare.pop() if self.spare else self.new_buffer(self.inline)
        size, follow = pack(op, value, buffer)
        requests = [post(memory(buffer.data_ptr(), size), dest=self.target, tag=_HEAD)]
        requests += [post(_bytes(tensor), dest=self.target, tag=_BODY) for tensor in follow]
        self.sending.append((requests, (buffer, value)))

    def poll(self) -> None:
        while self.sending and all(request.Test() for request in self.sending[0][0]):
            self.spare.append(self.sending.popleft()[1][0])


class MpiTransport(Transport):
    """Channels to the stage before and the stage after."""

    def __init__(self, world: MpiWorld | PlainWorld, before: int | None, after: int | None, stages: int) -> None:
        self.any_order = world.order == "any"
        self.stages, self.world, self.before, self.after = stages, world, before, after
        self.comm = comm = world.comm.Dup()  # two engines in one process do not hear each other
        neighbours = [rank for rank in (before, after) if rank is not None]
        self.to = {rank: _Outbound(comm, rank, world.inline, world.buffer) for rank in neighbours}
        self.come = [_Inbound(comm, rank, world.inline, world.landing, world.buffer) for rank in neighbours]
        self.mailbox: dict[Op, Value] = {}
        atexit.register(self._at_exit)  # a script that ends without a word leaves no receive posted

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is None:
            return
        channel = self.to[rank]
        value = tuple(tensor.detach().contiguous() for tensor in value)
        if self.world.staged:
            value = tuple(tensor.cpu() for tensor in value)
        elif self.world.device.type == "cuda":
            _finish_kernels()  # MPI does not know of streams
        if op.kind is Kind.EVALUATE:
            until(lambda: len(channel.sending) < CAPACITY, self.progress)
        channel.send(op, value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        self.progress()
        if timeout != 0:
            until(lambda: any(op in self.mailbox for op in ops) or self._deserted(ops), self.progress, timeout)
        for op in ops:
            if op in self.mailbox:
                value = self.mailbox.pop(op)
                return op, tuple(tensor.to(self.world.device) for tensor in value) if self.world.staged else value
        if timeout != 0 and self._deserted(ops):
            raise closed_early(self.world.rank, ops)
        return None

    def _deserted(self, ops: Sequence[Op]) -> bool:
        closed = {channel.source for channel in self.come if channel.ended and not channel.coming}
        return deserted(ops, closed, before=self.before, after=self.after)

    def progress(self) -> None:
        for inbound in self.come:
            inbound.poll(self.mailbox)
        for outbound in self.to.values():
            outbound.poll()

    def close(self, timeout: float | None = None) -> None:
        """Every neighbour closes too. After `timeout` seconds without them receives are withdrawn all the same."""
        atexit.unregister(self._at_exit)
        for channel in self.to.values():
            channel.send(CLOSING, ())
        closed = until(lambda: not any(channel.sending for channel in self.to.values()), self.progress, timeout)
        if closed:
            barrier = self.comm.Ibarrier()  # a neighbour may still need a posted receive, so none is cancelled
            closed = until(barrier.Test, self.progress, timeout)
        for inbound in self.come:
            inbound.close()
        if closed:
            self.comm.Free()

    def _at_exit(self) -> None:
        """A rank that ends with an exception waits for no other rank: mpi4py aborts the others next."""
        if not raised():
            self.close(timeout=LEAVE)


class _Exchange:
    """A sum of two: either rank sends its part as bytes and adds the other's, first rank's part first."""

    def __init__(self, comm: Any, other: int, tensor: Tensor, op: str, tag: int) -> None:
        self.tensor, self.op, self.finished = tensor, op, False
        self.theirs = tensor.new_empty(tensor.shape)
        self.requests = [
            comm.Irecv(_bytes(self.theirs), source=other, tag=tag),
            comm.Isend(_bytes(tensor), dest=other, tag=tag),
        ]

    def done(self) -> bool:
        if not self.finished and all(request.Test() for request in self.requests):
            import torch

            (torch.add if self.op == "sum" else torch.maximum)(self.tensor, self.theirs, out=self.tensor)
            self.finished = True
        return self.finished

    def wait(self) -> None:
        until(self.done, lambda: None)


class PairGroup:
    """Two ranks on CPUs. Their sum is one exchange of bytes over MPI: as much traffic as a ring's, a fraction of gloo's
    latency. MPI itself adds nothing, so every type passes, and two parts add to the same bits on both sides."""

    def __init__(self, comm: Any, ranks: Sequence[int], tag: int, others: Group) -> None:
        self.comm, self.ranks, self.tag = comm, tuple(ranks), tag
        self.broadcast, self.all_to_all, self.pairwise = others.broadcast, others.all_to_all, others.pairwise
        self.other = next(rank for rank in ranks if rank != comm.Get_rank())

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle:
        if op not in ("sum", "max"):
            raise InvalidRequest(f"all_reduce {op!r}", rule="sum or max", legal="sum")
        return _Exchange(self.comm, self.other, tensor, op, self.tag)


class MpiWorld:
    """The ranks that mpiexec started. MPI carries point-to-point messages, gloo or NCCL the collectives."""

    backend = "mpi"

    def __init__(
        self, *, inline: int = INLINE, pair_exchange: bool = True, order: str = "any", device: str = "cpu"
    ) -> None:
        import torch

        from suite.comm.collective.process_group import ProcessGroups

        check_inline(inline)
        self.inline, self.order, self.device = inline, order, torch.device(device)
        self.pair_exchange = pair_exchange and self.device.type == "cpu"
        self.staged = self.device.type == "cuda" and not cuda_aware()
        self.landing = torch.device("cpu") if self.staged else self.device  # where values arrive
        self.comm, self.pairs = communicator(), communicator()
        self.known: dict[tuple[int, ...], Group] = {}
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.listener, store, local = meeting()
        self.collectives = ProcessGroups(self.rank, self.size, store=store, local=local, device=self.device)
        self.departures = self.collectives.departures

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        return MpiTransport(self, before, after, stages)

    def group(self, ranks: Sequence[int]) -> Group:
        key = tuple(ranks)
        if key not in self.known:
            group = self.collectives.group(key)
            if len(key) == 2 and self.rank in key and self.pair_exchange:
                group = PairGroup(self.pairs, key, len(self.known), group)
            self.known[key] = group
        return self.known[key]

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        return all_reduce_scalar(self.comm, value, op, progress)

    def buffer(self, size: int) -> Tensor:
        return tensor_buffer(size)

    def close(self) -> None:
        self.comm.Barrier()
        self.collectives.close()
        self.comm.Free()
        self.pairs.Free()


def meeting() -> tuple[Any, Any, bool]:
    """A server to keep alive (on rank 0), the store where all of mpiexec's ranks meet, and whether on one host."""
    from torch.distributed import TCPStore

    from suite.comm.rendezvous.rank_rendezvous import store_at

    comm = MPI.COMM_WORLD
    hosts = comm.allgather(MPI.Get_processor_name())
    local = len(set(hosts)) == 1
    host = "127.0.0.1" if local else hosts[0]
    server = None
    if comm.Get_rank() == 0:
        server = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = comm.bcast(server.port if server else None)
    return server, store_at(host, port, comm.Get_size()), local


def cuda_aware() -> bool:
    """Whether this MPI reads device memory (Open MPI's own answer; False where it gives none)."""
    try:
        return bool(ctypes.CDLL(None).MPIX_Query_cuda_support())
    except AttributeError:
        return False


def library() -> str:
    """The MPI library, in one line."""
    return str(MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\x00 "))
