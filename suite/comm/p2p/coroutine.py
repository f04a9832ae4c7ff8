"""Ranks of one process as generators, without threads.

A generator yields wherever its rank would wait. A collective is done when its last rank has called it, and a rank that
waits in one yields too. So nothing depends on time, and every run is the same. While the ranks are created they are
threads of a loopback world: code that agrees on settings then needs no generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from suite.comm.p2p import threads
from suite.comm.p2p.message import receiver
from suite.core.errors import IllegalSchedule, RankError
from suite.core.op import Op
from suite.core.protocols import Group, Handle, Transport, Value

Rank = Generator[Any, None, Any]
_END = object()


class CoroutineHub:
    """State shared by the ranks.

    Attributes:
        inbox: Received values of each rank.
        operands: Operands and handles of unfinished collectives, by rank.
        running: Whether the ranks run as generators. Before, they are threads.
        progress_count: Number of sends and collective calls. In a deadlock it stays the same.
    """

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, device
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.operands: dict[threads.CollectiveKey, dict[int, tuple[torch.Tensor, _RankCollective]]] = {}
        self.running = False
        self.progress_count = 0

    def create_ranks(self, create: Callable[[CoroutineWorld], Any]) -> list[Any]:
        """Call `create(world)` for every rank, in threads; returns the results by rank."""
        created = threads.run(self.size, lambda world: create(CoroutineWorld(self, world)), device=self.device)
        self.running = True
        return created

    def run(self, ranks: Sequence[Rank]) -> Generator[Any, None, None]:
        """Run every rank to its end, one step at a time; yields what rank 0 yields, except None.

        Raises IllegalSchedule where every rank waits.
        """
        active = dict(enumerate(ranks))
        try:
            while active:
                before, active_count = self.progress_count, len(active)
                for rank in list(active):
                    message = next(active[rank], _END)
                    if message is _END:
                        del active[rank]
                    elif message is not None:
                        self.progress_count += 1
                        if rank == 0:
                            yield message
                if (self.progress_count, len(active)) == (before, active_count):
                    raise IllegalSchedule("deadlock: every rank waits for another")
        finally:
            for generator in active.values():
                generator.close()


class CoroutineTransport(Transport):
    """Channels as dictionaries: a value is passed by reference, detached. No call waits."""

    any_order = turns = True

    def __init__(self, hub: CoroutineHub, rank: int, homes: Sequence[int]) -> None:
        self.hub, self.rank, self.homes = hub, rank, homes

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        self.hub.progress_count += 1
        if rank is not None:
            self.hub.inbox[rank][op] = tuple(tensor.detach() for tensor in value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        inbox = self.hub.inbox[self.rank]
        for op in ops:
            if op in inbox:
                return op, inbox.pop(op)
        return None

    def progress(self) -> None:
        """A value is received as soon as it is sent."""

    def close(self) -> None:
        if unread := [str(op) for op in self.hub.inbox[self.rank]]:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


class _RankCollective:
    """A collective of one rank."""

    finished = False

    def done(self) -> bool:
        return self.finished

    def wait(self) -> None:
        if not self.finished:
            raise RankError("a rank that is a generator cannot wait: yield until done()")


class CoroutineGroup:
    """A group of generators. Reductions add in rank order."""

    def __init__(self, hub: CoroutineHub, thread_world: threads.LoopbackWorld, ranks: Sequence[int]) -> None:
        self.hub, self.rank, self.ranks = hub, thread_world.rank, tuple(ranks)
        self.thread_group = thread_world.group(ranks)
        self.count = 0

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if not self.hub.running:
            return self.thread_group.all_reduce(tensor, op)
        return self._collect(tensor, lambda operands: threads.reduce_in_order(operands, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        if not self.hub.running:
            return self.thread_group.broadcast(tensor, root)
        return self._collect(tensor, lambda operands: operands[self.ranks.index(root)])

    @torch.no_grad()
    def _collect(self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Handle:
        """Begin a collective. The last rank that calls it copies the result to all operands."""
        self.count += 1
        self.hub.progress_count += 1
        key, collective = (self.ranks, self.count), _RankCollective()
        operands = self.hub.operands.setdefault(key, {})
        operands[self.rank] = tensor, collective
        if len(operands) == len(self.ranks):
            combined = combine([operands[rank][0] for rank in self.ranks])
            for operand, waiting in operands.values():
                operand.copy_(combined)
                waiting.finished = True
            del self.hub.operands[key]
        return collective


class CoroutineWorld:
    """The world of one generator. thread_world: its world while the ranks are created"""

    staged = False
    backend, order = "memory", "any"

    def __init__(self, hub: CoroutineHub, thread_world: threads.LoopbackWorld) -> None:
        self.hub, self.thread_world, self.rank, self.size = hub, thread_world, thread_world.rank, thread_world.size
        self.device = thread_world.device
        self.groups: dict[tuple[int, ...], CoroutineGroup] = {}

    def transport(self, homes: Sequence[int]) -> Transport:
        return CoroutineTransport(self.hub, self.rank, homes)

    def group(self, ranks: Sequence[int]) -> Group:
        group = CoroutineGroup(self.hub, self.thread_world, ranks)
        return self.groups.setdefault(tuple(ranks), group)  # type: ignore[return-value]  # all_reduce, broadcast only

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        if self.hub.running and self.size > 1:
            raise RankError("a rank that is a generator would wait for ever: use all_reduce_scalar_steps")
        return self.thread_world.all_reduce_scalar(value, op, progress)

    def all_reduce_scalar_steps(self, value: float, op: str) -> Generator[None, None, float]:
        """The sum or maximum of one number per rank, as a generator that yields while it waits."""
        reduced = torch.tensor([value], dtype=torch.float64)
        handle = self.group(range(self.size)).all_reduce(reduced, op)
        while not handle.done():
            yield None
        return float(reduced)

    def close(self) -> None:
        """No resources to release."""
