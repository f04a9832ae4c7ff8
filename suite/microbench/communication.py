"""Messages and all-reduces to time: through the suite's transports, and through each library's own calls.

Preparation, operation and check are separate, so that a timer covers the operation alone. A value that arrives damaged
or is added wrongly raises an error instead of giving a time. Values are small whole numbers: every dtype adds them
without rounding on up to 64 ranks, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from suite import accelerator
from suite.accelerator import host_time
from suite.comm.collective.process_group import TorchWorld
from suite.comm.p2p.gloo import UNLIMITED
from suite.comm.p2p.polling import wait_until
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Group, Transport, World

LIBRARIES = {"mpi": "MPI", "gloo": "gloo", "nccl": "NCCL", "threads": "threads"}
SEND_DELAY = 50e-6  # seconds that the sender waits after the barrier, so that the receiver is in its receive
_TAG = 3  # of messages on a world's own communicator; transports duplicate the communicator
_POISON = -1  # never part of a value

Tensor = torch.Tensor
Call = Callable[[Tensor, Tensor], Tensor]  # (operand, receive buffer) -> received value or sum


def _no_progress() -> None:
    """No messages to move."""


@lru_cache(maxsize=8)
def pattern(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`count` zeros and ones, the same on every rank. They are random: a displaced slice differs."""
    bits = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.uint8)
    return bits.to(device, dtype)


def shift(number: int, rank: int) -> int:
    """The number that `rank` adds to the pattern in its operand of value `number`.

    It is 1, 2 or 3: no sum of several operands equals one operand.
    """
    return 1 + (number + rank) % 3


class TimedOperation:
    """One operation, run on values of several sizes.

    Attributes:
        backend: Backend.
        ours: Whether it runs through the suite's transports and groups.
        dtype: Dtype of the values.
        progress, close: Those of the transport.
    """

    def __init__(
        self, world: World, name: str, backend: str, call: Call, *, ours: bool = False, dtype: str = "float32"
    ) -> None:
        self.world, self.name, self.backend, self.call = world, name, backend, call
        self.ours, self.dtype = ours, getattr(torch, dtype)
        self.size = self.number = -1
        self.progress: Callable[[], None] = _no_progress
        self.close: Callable[[], None] = _no_progress
        self.output: torch.Tensor | None = None

    def operand_of(self, rank: int) -> Tensor:
        """Operand of `rank` before the operation."""
        return self.bits + shift(self.number, rank)

    def expected(self) -> Tensor | None:
        """Output that this rank must have; None for a rank without output."""
        raise NotImplementedError

    def prepare(self, size: int, number: int) -> None:
        """Write the operand of value `number`, of `size` bytes, and clear the receive buffer. Not timed."""
        if size != self.size:
            count = size // self.dtype.itemsize
            self.bits = pattern(count, self.dtype, self.world.device)
            self.operand, self.buffer = (torch.empty_like(self.bits) for _ in range(2))
        self.size, self.number, self.output = size, number, None
        self.operand.copy_(self.operand_of(self.world.rank))
        self.buffer.fill_(_POISON)
        accelerator.synchronize(self.world.device)

    def run_timed(self) -> float:
        """Run the operation; returns its seconds on this rank."""
        begin = host_time()
        self.output = self.call(self.operand, self.buffer)
        accelerator.synchronize(self.world.device)
        return host_time() - begin

    def check(self) -> None:
        """Raise RankError where any number of the output is wrong. Not timed."""
        expected, output = self.expected(), self.output
        if expected is None:
            return
        if output is None or output.dtype != expected.dtype or not torch.equal(output, expected):
            comparable = output is not None and output.shape == expected.shape
            wrong = int(torch.ne(output, expected).sum()) if output is not None and comparable else expected.numel()
            raise RankError(
                f"{self.name}: {wrong} of {expected.numel()} numbers of value {self.number} ({self.size} bytes) "
                f"are wrong on rank {self.world.rank}"
            )


class RoundTrip(TimedOperation):
    """A value that rank 0 sends to rank 1 and receives back: twice the time of one way. Other ranks do nothing."""

    def expected(self) -> Tensor | None:
        return self.operand_of(0) if self.world.rank < 2 else None

    def run_timed(self) -> float:
        if self.world.rank > 1:
            return 0.0
        if self.world.rank == 0:
            end = host_time() + SEND_DELAY
            while host_time() < end:
                self.progress()
        return super().run_timed() / 2


class AllReduce(TimedOperation):
    """A sum of the operands of all ranks, which every rank receives."""

    def expected(self) -> Tensor | None:
        return self.bits * self.world.size + sum(shift(self.number, rank) for rank in range(self.world.size))


class SecondBackend(TorchWorld):
    """Channels of gloo or NCCL in a process that already has a default process group. Collective."""

    def __init__(self, world: Any, backend: str) -> None:
        self.rank, self.size, self.device, self.eager_bytes = world.rank, world.size, world.device, world.eager_bytes
        self.backend, self.order = backend, "static" if backend == "nccl" else "any"
        self.staged = backend == "gloo" and not accelerator.on_host(self.device)
        self.timeout = UNLIMITED
        self.open_channels()


def round_trips(world: World, backends: Sequence[str]) -> list[TimedOperation]:
    """Round trips over each backend: by its library's own calls, then through the suite's transport.

    Collective: all ranks pass the same backends, which the world must support.
    """
    operations: list[TimedOperation] = []
    homes = (0, 1) if world.rank in (0, 1) else (world.rank,)
    for backend in backends:
        library = LIBRARIES[backend]
        if backend in _TRIPS:
            verb, make = _TRIPS[backend]
            operations.append(RoundTrip(world, f"{library} {verb}", backend, _on_host(world, backend, make(world))))
        timed_world = world if backend == world.backend else SecondBackend(world, backend)
        transport = timed_world.transport(homes)
        trip = _transport_trip(transport, world.rank)
        operation = RoundTrip(world, f"suite over {library}", backend, trip, ours=True)
        operation.progress, operation.close = transport.progress, transport.close
        operations.append(operation)
    return operations


def all_reduces(world: World, backends: Sequence[str]) -> list[TimedOperation]:
    """All-reduces over each backend: by its library's own calls, then through the suite's groups where they use it.

    MPI never adds half precision: the suite exchanges such operands over MPI and adds them itself.
    """
    operations: list[TimedOperation] = []
    for backend in backends:
        library = LIBRARIES[backend]
        if backend in _SUMS:
            verb, make, dtypes = _SUMS[backend]
            call = _on_host(world, backend, make(world))
            for dtype in dtypes:
                name = f"{library} {verb}{_suffix(dtype)}"
                operations.append(AllReduce(world, name, backend, call, dtype=dtype))
        group = _group(world, backend)
        if group is not None:
            name = f"suite {'exchange ' if backend == 'mpi' else ''}over {library}"  # MPI alone has groups of pairs
            # the first backend that the suite sums by is the one for bfloat16
            first = not any(each.ours for each in operations)
            for dtype in _BOTH if first else _BOTH[:1]:
                name_of_dtype = f"{name}{_suffix(dtype)}"
                operations.append(AllReduce(world, name_of_dtype, backend, _group_sum(group), ours=True, dtype=dtype))
    return operations


def copied(world: World, backend: str) -> bool:
    """Whether messages of this backend copy device memory through host memory."""
    if accelerator.on_host(world.device) or backend == "nccl":
        return False
    if backend != "mpi":
        return True
    from suite.comm.p2p.mpi import cuda_aware  # loads MPI, which a machine with NCCL may lack

    return not cuda_aware()


def _group(world: Any, backend: str) -> Group | None:
    """The group of all ranks that sums over this backend; None where the suite sums over another backend."""
    all_ranks = range(world.size)
    if backend == "threads":
        return world.group(all_ranks)  # type: ignore[no-any-return]
    if backend == "mpi":
        from suite.comm.p2p.mpi import PairGroup

        group = world.group(all_ranks)
        return group if isinstance(group, PairGroup) else None
    collective_backend = "gloo" if accelerator.on_host(world.device) else "nccl"
    return world.collectives.group(all_ranks) if backend == collective_backend else None


def _suffix(dtype: str) -> str:
    """Part of the name of a sum in another dtype than float32."""
    return "" if dtype == "float32" else f" {dtype}"


def _transport_trip(transport: Transport, rank: int) -> Call:
    """Rank 0 sends the output of a forward and waits for the backward's; rank 1 answers as the engine's worker does."""
    count = -1

    def call(operand: Tensor, _: Tensor) -> Tensor:
        nonlocal count
        count += 1
        forward, backward = Op(0, Kind.FORWARD, count), Op(1, Kind.BACKWARD, count)
        if rank == 0:
            transport.send(forward, (operand,))
        arrival = transport.recv_any((backward if rank == 0 else forward,), None)
        assert arrival is not None, "the wait has no time limit"
        if rank == 1:
            transport.send(backward, arrival[1])
        return arrival[1][0]  # type: ignore[no-any-return]

    return call


def _mpi_trip(world: Any) -> Call:
    """Round trip by mpi4py's Isend and Irecv of buffers; MPI itself waits."""
    comm, rank = world.comm, world.rank

    def call(operand: Tensor, buffer: Tensor) -> Tensor:
        sent, received = _mpi_argument(operand), _mpi_argument(buffer)
        if rank == 0:
            request = comm.Irecv(received, source=1, tag=_TAG)
            comm.Isend(sent, dest=1, tag=_TAG).Wait()
            request.Wait()
        else:
            comm.Irecv(received, source=0, tag=_TAG).Wait()
            comm.Isend(received, dest=0, tag=_TAG).Wait()
        return buffer

    return call


def _torch_trip(world: World) -> Call:
    """Round trip by torch.distributed's send and recv, into allocated memory."""
    rank = world.rank

    def call(operand: Tensor, buffer: Tensor) -> Tensor:
        if rank == 0:
            dist.send(operand, 1)
            dist.recv(buffer, 1)
        else:
            dist.recv(buffer, 0)
            dist.send(buffer, 0)
        return buffer

    return call


def _mpi_sum(world: Any) -> Call:
    def call(operand: Tensor, buffer: Tensor) -> Tensor:
        assert operand.dtype == torch.float32, "MPI adds other dtypes wrongly, without an error"
        world.comm.Allreduce(_mpi_argument(operand), _mpi_argument(buffer))
        return buffer

    return call


def _torch_sum(world: World) -> Call:
    def call(operand: Tensor, _: Tensor) -> Tensor:
        dist.all_reduce(operand)
        return operand

    return call


def _group_sum(group: Group) -> Call:
    """All-reduce that polls, as the engine's update does: messages could move in between."""

    def call(operand: Tensor, _: Tensor) -> Tensor:
        wait_until(group.all_reduce(operand).done, _no_progress)
        return operand

    return call


def _mpi_argument(tensor: Tensor) -> Any:
    """The tensor in the form that mpi4py accepts fastest. mpi4py needs 10 us to inspect a torch tensor."""
    return tensor.numpy() if accelerator.on_host(tensor.device) else tensor


def _on_host(world: World, backend: str, call: Call) -> Call:
    """The operation, through host memory where its messages lie there and the tensors on a device."""

    def staged(operand: Tensor, buffer: Tensor) -> Tensor:
        return buffer.copy_(call(operand.cpu(), torch.empty_like(buffer, device="cpu")))

    return staged if copied(world, backend) else call


_BOTH = ("float32", "bfloat16")
_TRIPS = {"mpi": ("Isend/Irecv", _mpi_trip), "gloo": ("send/recv", _torch_trip), "nccl": ("send/recv", _torch_trip)}
_SUMS = {
    "mpi": ("Allreduce", _mpi_sum, ("float32",)),
    "gloo": ("all_reduce", _torch_sum, _BOTH),
    "nccl": ("all_reduce", _torch_sum, _BOTH),
}
