"""Messages and all-reduces to time, by each backend: through the suite's transports, and by the library's own calls.

Preparation, operation and check are separate, so that a clock covers the operation alone. A value that does not arrive
whole, or is added wrongly, raises an error instead of giving a time. Values are small whole numbers: every type adds
them without rounding on up to 64 ranks, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from suite.comm.collective.process_group import PATIENCE, TorchWorld
from suite.comm.p2p.mpi import PairGroup, cuda_aware
from suite.comm.p2p.polling import until
from suite.core.errors import RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Group, Transport, World

LIBRARIES = {"mpi": "MPI", "gloo": "gloo", "nccl": "NCCL", "threads": "threads"}
LATE = 50e-6  # seconds that the first rank waits after everybody is ready: the second is in its receive by then
_TAG = 3  # of messages on a world's own communicator, whose channels have their own
_POISON = -1  # no part of any value

Tensor = torch.Tensor
Turn = Callable[[Tensor, Tensor], Tensor]  # (what is sent, memory for what comes) -> what came, or the sum


def _nothing() -> None:
    """No messages to move."""


@lru_cache(maxsize=8)
def pattern(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`count` zeros and ones, the same on every rank; a part of it that is displaced is another."""
    bits = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(count), dtype=torch.uint8)
    return bits.to(device, dtype)


def shift(number: int, rank: int) -> int:
    """The number that `rank` adds to the pattern in its part of value `number`: 1, 2 or 3, so that no sum equals a
    part.
    """
    return 1 + (number + rank) % 3


class TimedOperation:
    """One operation on one size after the other.

    Attributes:
        ours: Through the suite's layer; staged: device memory is copied through the host's on the way.
        dtype: Of the values.
    """

    def __init__(
        self, world: World, name: str, backend: str, turn: Turn, *, ours: bool = False, dtype: str = "float32"
    ) -> None:
        self.world, self.name, self.backend, self.turn = world, name, backend, turn
        self.ours, self.type = ours, getattr(torch, dtype)
        self.size = self.number = -1
        self.progress: Callable[[], None] = _nothing
        self.close: Callable[[], None] = _nothing
        self.came: torch.Tensor | None = None

    def part(self, rank: int) -> tuple[int, int]:
        """Initial data of `rank`, as (factor of the pattern, added number)."""
        return 1, shift(self.number, rank)

    def wanted(self) -> tuple[int, int] | None:
        """Final data that this rank must have, as `part` describes; None for nothing."""
        raise NotImplementedError

    def ready(self, size: int, number: int) -> None:
        """Not timed: memory of `size` bytes that holds this rank's part of value `number`, and none of an earlier."""
        if size != self.size:
            count = size // self.type.itemsize
            self.bits = pattern(count, self.type, self.world.device)
            self.value, self.space = (torch.empty_like(self.bits) for _ in range(2))
        self.size, self.number, self.came = size, number, None
        self._write(self.value, *self.part(self.world.rank))
        self.space.fill_(_POISON)
        _finish(self.world)

    def go(self) -> float:
        """Timed: seconds of this rank."""
        begin = perf_counter()
        self.came = self.turn(self.value, self.space)
        _finish(self.world)
        return perf_counter() - begin

    def check(self) -> None:
        """Not timed. Raises RankError for any number that is not what it must be."""
        right = self.wanted()
        if right is None:
            return
        came = self.came
        expected = self._write(self.value if came is self.space else self.space, *right)
        if came is None or came.dtype != expected.dtype or not torch.equal(came, expected):
            alike = came is not None and came.shape == expected.shape
            wrong = int(torch.ne(came, expected).sum()) if came is not None and alike else expected.numel()
            raise RankError(
                f"{self.name}: {wrong} of {expected.numel()} numbers of value {self.number} ({self.size} bytes) "
                f"are wrong on rank {self.world.rank}"
            )

    def _write(self, target: Tensor, factor: int, added: int) -> Tensor:
        start = torch.tensor(added, dtype=self.type, device=self.bits.device)
        return torch.add(start, self.bits, alpha=factor, out=target)  # in one pass


class RoundTrip(TimedOperation):
    """A value that goes from rank 0 to rank 1 and comes back: twice the time of one way. Others have no part in it."""

    def part(self, rank: int) -> tuple[int, int]:
        return (1, shift(self.number, 0)) if rank == 0 else (0, _POISON)  # nobody else has it before it comes

    def wanted(self) -> tuple[int, int] | None:
        return (1, shift(self.number, 0)) if self.world.rank < 2 else None

    def go(self) -> float:
        if self.world.rank > 1:
            return 0.0
        if self.world.rank == 0:
            end = perf_counter() + LATE
            while perf_counter() < end:
                self.progress()
        return super().go() / 2


class AllReduce(TimedOperation):
    """A sum of the parts of all ranks, which every rank has in the end."""

    def wanted(self) -> tuple[int, int] | None:
        return self.world.size, sum(shift(self.number, rank) for rank in range(self.world.size))


class SecondBackend(TorchWorld):
    """The channels of gloo or NCCL in a process whose default process group another world has made. Collective."""

    def __init__(self, world: Any, backend: str) -> None:
        self.rank, self.size, self.device, self.inline = world.rank, world.size, world.device, world.inline
        self.backend, self.order = backend, "static" if backend == "nccl" else "any"
        self.staged = self.device.type == "cuda" and backend == "gloo"
        self.channels = dist.new_group(list(range(self.size)), backend="gloo", timeout=PATIENCE)
        self.made = 0


def round_trips(world: World, backends: Sequence[str]) -> list[TimedOperation]:
    """By each backend: its library's own calls, then our channels. Collective: all ranks name the same backends, which
    their world must have."""
    operations: list[TimedOperation] = []
    calls = {"mpi": _mpi_trip, "gloo": _torch_trip, "nccl": _torch_trip}
    verbs = {"mpi": "Isend/Irecv", "gloo": "send/recv", "nccl": "send/recv"}
    before, after = {0: (None, 1), 1: (0, None)}.get(world.rank, (None, None))
    for backend in backends:
        library = LIBRARIES[backend]
        if backend in calls:
            turn = calls[backend](world)
            turn = _staged(turn) if copied(world, backend) else turn
            operations.append(RoundTrip(world, f"{library} {verbs[backend]}", backend, turn))
        timed_world = world if backend == world.backend else SecondBackend(world, backend)
        channels = timed_world.transport(before, after, 2)
        turn = _over(channels, world.rank, by_reference=backend == "threads")
        operation = RoundTrip(world, f"suite over {library}", backend, turn, ours=True)
        operation.progress, operation.close = channels.progress, channels.close
        operations.append(operation)
    return operations


def all_reduces(world: World, backends: Sequence[str]) -> list[TimedOperation]:
    """By each backend: its library's own calls, then our groups, where the suite sums by it. Half precision is never
    added by MPI: where it is exchanged over MPI, we add it."""
    operations: list[TimedOperation] = []
    for backend in backends:
        library = LIBRARIES[backend]
        if backend == "mpi":
            turn = _mpi_sum(world)
            operations.append(
                AllReduce(world, "MPI Allreduce", backend, _staged(turn) if copied(world, backend) else turn)
            )
        elif backend in LIBRARIES and backend != "threads":
            turn = _staged(_torch_sum) if copied(world, backend) else _torch_sum
            types = ("float32", "bfloat16")
            names = (f"{library} all_reduce", f"{library} all_reduce bfloat16")
            operations += [
                AllReduce(world, name, backend, turn, dtype=dtype) for name, dtype in zip(names, types, strict=True)
            ]
        group = _group(world, backend)
        if group is not None:
            pair = isinstance(group, PairGroup)
            name, turn = f"suite {'exchange ' if pair else ''}over {library}", _by(group)
            operations.append(AllReduce(world, name, backend, turn, ours=True))
            if not any(
                each.ours and each.type == torch.bfloat16 for each in operations
            ):  # the first: the suite sums by it
                operations.append(AllReduce(world, f"{name} bfloat16", backend, turn, ours=True, dtype="bfloat16"))
    return operations


def copied(world: World, backend: str) -> bool:
    """Whether device memory is copied through the host's on its way."""
    if world.device.type == "cpu" or backend == "nccl":
        return False
    return backend != "mpi" or not cuda_aware()


def _group(world: Any, backend: str) -> Group | None:
    """All ranks, as the suite sums over them by this backend; None where it has another for that."""
    everyone = range(world.size)
    if backend == "threads":
        return world.group(everyone)  # type: ignore[no-any-return]
    if backend == "mpi":
        group = world.group(everyone)
        return group if isinstance(group, PairGroup) else None
    collective_backend = "nccl" if world.device.type == "cuda" else "gloo"
    return world.collectives.group(everyone) if backend == collective_backend else None


def _over(channels: Transport, rank: int, *, by_reference: bool) -> Turn:
    """Rank 0 sends the output of a forward and waits for the backward's; rank 1 answers as the engine's worker does.
    by_reference: what is sent is written to again before the other has looked at it, and so a copy is sent."""
    count = -1

    def turn(value: Tensor, _: Tensor) -> Tensor:
        nonlocal count
        count += 1
        forward, backward = Op(0, Kind.FORWARD, count), Op(1, Kind.BACKWARD, count)
        if rank == 0:
            channels.send(forward, (value.clone() if by_reference else value,))
        arrival = channels.recv_any((backward if rank == 0 else forward,), None)
        if arrival is None:
            raise RankError(f"a channel of rank {rank} that waits for ever came back with nothing")
        if rank == 1:
            channels.send(backward, arrival[1])
        return arrival[1][0]  # type: ignore[no-any-return]

    return turn


def _mpi_trip(world: Any) -> Turn:
    """mpi4py's Isend and Irecv of buffers, waited for by MPI itself."""
    comm, rank = world.comm, world.rank

    def turn(value: Tensor, space: Tensor) -> Tensor:
        sent, came = _buffer(value), _buffer(space)
        if rank == 0:
            coming = comm.Irecv(came, source=1, tag=_TAG)
            comm.Isend(sent, dest=1, tag=_TAG).Wait()
            coming.Wait()
        else:
            comm.Irecv(came, source=0, tag=_TAG).Wait()
            comm.Isend(came, dest=0, tag=_TAG).Wait()
        return space

    return turn


def _torch_trip(world: World) -> Turn:
    """torch.distributed's send and recv, into memory that is there already."""
    rank = world.rank

    def turn(value: Tensor, space: Tensor) -> Tensor:
        if rank == 0:
            dist.send(value, 1)
            dist.recv(space, 1)
        else:
            dist.recv(space, 0)
            dist.send(space, 0)
        return space

    return turn


def _mpi_sum(world: Any) -> Turn:
    def turn(value: Tensor, space: Tensor) -> Tensor:
        assert value.dtype == torch.float32, "MPI adds other types as it likes, without a word"
        world.comm.Allreduce(_buffer(value), _buffer(space))
        return space

    return turn


def _torch_sum(value: Tensor, _: Tensor) -> Tensor:
    dist.all_reduce(value)
    return value


def _by(group: Group) -> Turn:
    """As the engine's update waits: it polls, so that messages could move in between."""

    def turn(value: Tensor, _: Tensor) -> Tensor:
        until(group.all_reduce(value).done, _nothing)
        return value

    return turn


def _buffer(tensor: Tensor) -> Any:
    """The argument that mpi4py accepts fastest: it inspects a tensor for ten microseconds, and numpy's view not at
    all.
    """
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _staged(turn: Turn) -> Turn:
    """Of device memory, through host memory."""

    def through(value: Tensor, space: Tensor) -> Tensor:
        return space.copy_(turn(value.cpu(), torch.empty_like(space, device="cpu")))

    return through


def _finish(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
