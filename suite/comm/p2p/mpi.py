"""Point-to-point transport over MPI.

One receive of constant size is posted per channel. A value whose header and tensors fit in `eager_bytes` bytes is one
message. For a larger value the header goes first, and each tensor follows in a message of its own, without a copy,
into a tensor of its exact size. So neither side keeps state about shapes. Messages are bytes: nothing is pickled, and
every dtype passes. Channels send torch tensors or plain memory (comm.p2p.host_memory), and torch is loaded only where
tensors are created.
"""

from __future__ import annotations

import atexit
import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from suite.comm.p2p.channels import ChannelTransport
from suite.comm.p2p.message import CLOSE, EAGER_BYTES, evaluation_capacity, neighbours, pack, unpack
from suite.comm.p2p.polling import wait_until
from suite.comm.rendezvous.peer_exit import EXIT_TIMEOUT, exception_raised
from suite.comm.rendezvous.rank_rendezvous import Rendezvous
from suite.core.op import Kind, Op
from suite.core.protocols import Group, Handle, Tensor, Transport, Value

_HEADER_TAG, _PAYLOAD_TAG = 1, 2

allocate = MPI.buffer.allocate  # (size) -> this many uninitialised bytes


def new_communicator() -> Any:
    """A duplicate of MPI.COMM_WORLD: messages of two communicators never match."""
    return MPI.COMM_WORLD.Dup()


def mpi_buffer(address: int, size: int) -> Any:
    """`size` bytes at `address` as an MPI message."""
    return [MPI.buffer.fromaddress(address, size), size, MPI.BYTE]


def _tensor_bytes(tensor: Tensor) -> Any:
    """The memory of a contiguous tensor as an MPI message."""
    return mpi_buffer(tensor.data_ptr(), tensor.nbytes)


def _finish_kernels() -> None:
    import torch

    torch.accelerator.current_stream().synchronize()


class _Incoming(NamedTuple):
    op: Op
    value: Value
    requests: list[Any]  # receives of the payload


class MpiChannel:
    """Messages from and to one neighbour.

    Attributes:
        posted: The posted receive of a header.
        incoming: Values whose payload is still in flight.
        sending: Sends in flight, with the buffer and the value that MPI reads.
        capacity: Most evaluation values in flight to the neighbour.
        room: Evaluation values that may still arrive before this rank reads one.
        ended: Whether the neighbour has sent its closing message.
    """

    def __init__(self, world: MpiRanks, comm: Any, peer: int, homes: Sequence[int]) -> None:
        self.world, self.comm, self.peer = world, comm, peer
        self.capacity = evaluation_capacity(homes, world.rank, peer)
        self.room = evaluation_capacity(homes, peer, world.rank)
        self.incoming: deque[_Incoming] = deque()
        self.sending: deque[tuple[list[Any], Any]] = deque()
        self.free_buffers: list[Tensor] = []
        self.ended = False
        self.buffer = world.buffer(world.eager_bytes)
        self.view = memoryview(MPI.buffer.fromaddress(self.buffer.data_ptr(), world.eager_bytes))  # type: ignore[arg-type]
        self._post()

    @property
    def closed(self) -> bool:
        return self.ended and not self.incoming

    def _post(self) -> None:
        """Post the receive of the next header, unless this rank must first read an evaluation value."""
        self.posted = None
        if self.room and not self.ended:
            self.posted = self.comm.Irecv(_tensor_bytes(self.buffer), source=self.peer, tag=_HEADER_TAG)

    def read_evaluation(self) -> None:
        """Count an evaluation value that this rank has read."""
        self.room += 1
        if self.posted is None:
            self._post()

    def send(self, op: Op, value: Value) -> None:
        # a synchronous-mode send completes when it is received: so an evaluation counts its unreceived values
        post = self.comm.Issend if op.kind is Kind.EVALUATE else self.comm.Isend
        buffer = self.free_buffers.pop() if self.free_buffers else self.world.buffer(self.world.eager_bytes)
        size, payload = pack(op, value, buffer)
        requests = [post(mpi_buffer(buffer.data_ptr(), size), dest=self.peer, tag=_HEADER_TAG)]
        requests += [post(_tensor_bytes(tensor), dest=self.peer, tag=_PAYLOAD_TAG) for tensor in payload]
        self.sending.append((requests, (buffer, value)))

    def poll(self, mailbox: dict[Op, Value]) -> None:
        device = self.world.landing
        while self.posted is not None and self.posted.Test():
            op, value, payload = unpack(self.buffer, self.view, device)
            if op == CLOSE:
                self.ended = True
            else:
                if payload and device != self.buffer.device:
                    _finish_kernels()  # kernels may still read the memory that the allocator reused
                requests = [
                    self.comm.Irecv(_tensor_bytes(each), source=self.peer, tag=_PAYLOAD_TAG) for each in payload
                ]
                self.incoming.append(_Incoming(op, value, requests))
                self.room -= op.kind is Kind.EVALUATE
            self._post()
        while self.incoming and all(request.Test() for request in self.incoming[0].requests):
            op, value, _ = self.incoming.popleft()
            mailbox[op] = value
        while self.sending and all(request.Test() for request in self.sending[0][0]):
            self.free_buffers.append(self.sending.popleft()[1][0])

    def close(self) -> None:
        posted = [] if self.posted is None else [self.posted]
        for request in [*posted, *(request for incoming in self.incoming for request in incoming.requests)]:
            request.Cancel()
            request.Wait()


class MpiTransport(ChannelTransport[MpiChannel]):
    """Channels over MPI, on a communicator of their own: it separates the messages of two engines in one process."""

    def __init__(self, world: MpiRanks, homes: Sequence[int]) -> None:
        super().__init__(world, homes)
        self.comm = world.comm.Dup()
        self.channels = {peer: MpiChannel(world, self.comm, peer, homes) for peer in neighbours(homes, world.rank)}

    def start(self, channel: MpiChannel, op: Op, value: Value) -> None:
        if not (self.world.staged or self.world.on_host):
            _finish_kernels()  # MPI ignores streams
        if op.kind is Kind.EVALUATE:
            wait_until(lambda: len(channel.sending) < channel.capacity, self.progress)
        channel.send(op, value)

    def receive(self, ops: Sequence[Op], timeout: float | None) -> None:
        if timeout != 0:
            arrived = self.mailbox.keys()
            wait_until(lambda: not arrived.isdisjoint(ops) or self.senders_closed(ops), self.progress, timeout)

    def progress(self) -> None:
        for channel in self.channels.values():
            channel.poll(self.mailbox)

    def close(self, timeout: float | None = None) -> None:
        """Wait until all neighbours close. After `timeout` seconds the posted receives are cancelled anyway."""
        atexit.unregister(self._at_exit)
        channels = self.channels.values()
        for channel in channels:
            channel.send(CLOSE, ())
        closed = wait_until(lambda: not any(channel.sending for channel in channels), self.progress, timeout)
        if closed:
            barrier = self.comm.Ibarrier()  # a neighbour may still need a posted receive
            closed = wait_until(barrier.Test, self.progress, timeout)
        for channel in channels:
            channel.close()
        if closed:
            self.comm.Free()

    def _at_exit(self) -> None:
        if not exception_raised():  # mpi4py aborts the other ranks after an exception
            self.close(timeout=EXIT_TIMEOUT)


class _PairSum:
    """All-reduce of two ranks: each sends its operand as bytes and adds the peer's to its own."""

    def __init__(self, comm: Any, peer_rank: int, tensor: Tensor, op: str, tag: int) -> None:
        self.tensor, self.op, self.finished = tensor, op, False
        self.peer_operand = tensor.new_empty(tensor.shape)
        self.requests = [
            comm.Irecv(_tensor_bytes(self.peer_operand), source=peer_rank, tag=tag),
            comm.Isend(_tensor_bytes(tensor), dest=peer_rank, tag=tag),
        ]

    def done(self) -> bool:
        if not self.finished and all(request.Test() for request in self.requests):
            import torch

            (torch.add if self.op == "sum" else torch.maximum)(self.tensor, self.peer_operand, out=self.tensor)
            self.finished = True
        return self.finished

    def wait(self) -> None:
        wait_until(self.done, lambda: None)


class PairGroup:
    """Two ranks on CPUs that all-reduce by exchanging bytes over MPI.

    The traffic is that of a ring, at a fraction of gloo's latency. MPI itself adds nothing, so that every dtype
    passes, and the sum of two operands has the same bits on both ranks. `collectives` runs the other operations.
    """

    def __init__(self, comm: Any, ranks: Sequence[int], tag: int, collectives: Group) -> None:
        self.comm, self.ranks, self.tag = comm, tuple(ranks), tag
        self.broadcast, self.all_to_all = collectives.broadcast, collectives.all_to_all
        self.pairwise = collectives.pairwise
        self.peer_rank = next(rank for rank in ranks if rank != comm.Get_rank())

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle:
        return _PairSum(self.comm, self.peer_rank, tensor, op, self.tag)


class MpiRanks:
    """The ranks that mpiexec started.

    Attributes:
        on_host: Whether the ranks compute on a CPU.
        staged: Whether device tensors are copied through host memory.
        order: "any", or "static".
        eager_bytes: Size of the first part of a message, in bytes.
        comm: Communicator of messages and numbers.
        pair_comm: Communicator of sums by exchange.
        device, landing: Device of the ranks, and of received tensors before a staged copy.
    """

    backend, on_host, staged = "mpi", True, False

    def __init__(self, *, eager_bytes: int, order: str, device: Any) -> None:
        self.eager_bytes, self.order, self.device = eager_bytes, order, device
        self.landing = device
        self.comm, self.pair_comm = new_communicator(), new_communicator()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.groups: dict[tuple[int, ...], Group] = {}

    def transport(self, homes: Sequence[int]) -> Transport:
        return MpiTransport(self, homes)

    def all_reduce_numbers(self, numbers: Sequence[float], op: str, progress: Callable[[], None]) -> list[float]:
        """Sums or maxima of a few numbers per rank over MPI, which takes 20 us where gloo takes a millisecond."""
        operand, reduced = array("d", numbers), array("d", numbers)
        mpi_op = {"sum": MPI.SUM, "max": MPI.MAX}[op]
        wait_until(self.comm.Iallreduce([operand, MPI.DOUBLE], [reduced, MPI.DOUBLE], mpi_op).Test, progress)
        return reduced.tolist()

    def buffer(self, size: int) -> Tensor:
        raise NotImplementedError

    def close(self) -> None:
        self.comm.Barrier()
        self.comm.Free()
        self.pair_comm.Free()


class MpiWorld(MpiRanks):
    """Ranks with torch. MPI sends point-to-point messages; gloo or NCCL runs the collectives."""

    def __init__(
        self, *, eager_bytes: int = EAGER_BYTES, pair_exchange: bool = True, order: str = "any", device: str = "cpu"
    ) -> None:
        import torch

        from suite import accelerator
        from suite.comm.collective.process_group import ProcessGroups

        super().__init__(eager_bytes=eager_bytes, order=order, device=torch.device(device))
        self.on_host = accelerator.on_host(device)
        self.pair_exchange = pair_exchange and self.on_host
        self.staged = not self.on_host and not cuda_aware()
        self.landing = torch.device("cpu") if self.staged else self.device
        self.collectives = ProcessGroups(self.rank, self.size, rendezvous=connect_mpi_ranks(), device=self.device)
        self.departures = self.collectives.departures

    def group(self, ranks: Sequence[int]) -> Group:
        key = tuple(ranks)
        if key not in self.groups:
            group = self.collectives.group(key)
            if len(key) == 2 and self.rank in key and self.pair_exchange:
                group = PairGroup(self.pair_comm, key, len(self.groups), group)
            self.groups[key] = group
        return self.groups[key]

    def buffer(self, size: int) -> Tensor:
        import torch

        return torch.empty(size, dtype=torch.uint8)

    def close(self) -> None:
        self.comm.Barrier()
        self.collectives.close()
        super().close()


def connect_mpi_ranks() -> Rendezvous:
    """Serve a store on rank 0, send its port over MPI, and connect all ranks to it."""
    from torch.distributed import TCPStore

    comm = MPI.COMM_WORLD
    hosts = comm.allgather(MPI.Get_processor_name())
    one_host = len(set(hosts)) == 1
    address = "127.0.0.1" if one_host else hosts[0]
    server = None
    if comm.Get_rank() == 0:
        server = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    port = comm.bcast(server.port if server else None)
    return Rendezvous(server, TCPStore(address, port, comm.Get_size(), is_master=False), one_host)


def cuda_aware() -> bool:
    """Whether this MPI reads device memory, as Open MPI reports; False for an MPI that does not report it."""
    try:
        return bool(ctypes.CDLL(None).MPIX_Query_cuda_support())
    except AttributeError:
        return False
