"""Ranks of one process as generators, without threads.

A generator yields wherever its rank would wait. A collective ends when its last member has come, and a rank that waits
in one stops too. So nothing here depends on time, and every run of it is the same. Until turns begin the ranks are
threads of a loopback world: what engines agree on while they are made needs no generator.
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


class Desk:
    """State shared by the ranks: values under way, collectives, and the rank that runs."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.meetings: dict[tuple[tuple[int, ...], int], dict[int, tuple[torch.Tensor, _RankCollective]]] = {}
        self.begun = False
        self.moves = 0  # sends, receipts and meetings: nothing moves in a deadlock

    def made(self, make: Callable[[CoroutineWorld], Any]) -> list[Any]:
        """The world-building functions of all ranks, run in threads; the turns begin afterwards."""
        makers = threads.run(self.size, lambda world: make(CoroutineWorld(self, world)))
        self.begun = True
        return makers

    def run(self, ranks: Sequence[Rank]) -> Generator[Any, None, None]:
        """Every rank to its end, in turns; yields what rank 0 yields, its Nones apart. Raises IllegalSchedule where all
        wait."""
        going = dict(enumerate(ranks))
        try:
            while going:
                before, open_count = self.moves, len(going)
                for rank in list(going):
                    message = next(going[rank], _END)
                    if message is _END:
                        del going[rank]
                    elif message is not None:
                        self.moves += 1
                        if rank == 0:
                            yield message
                if (self.moves, len(going)) == (before, open_count):
                    raise IllegalSchedule("deadlock: every rank waits for another")
        finally:
            for ended in going.values():
                ended.close()


class CoroutineTransport(Transport):
    """Channels as dictionaries: a value is handed over by reference, detached. Nothing waits here."""

    any_order = turns = True

    def __init__(self, desk: Desk, rank: int, before: int | None, after: int | None, stages: int) -> None:
        self.desk, self.rank, self.before, self.after, self.stages = desk, rank, before, after, stages

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        self.desk.moves += 1
        if rank is not None:
            self.desk.inbox[rank][op] = tuple(tensor.detach() for tensor in value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        inbox = self.desk.inbox[self.rank]
        for op in ops:
            if op in inbox:
                return op, inbox.pop(op)
        return None

    def progress(self) -> None:
        """Values are where they belong as soon as they are sent."""

    def close(self) -> None:
        if unread := [str(op) for op in self.desk.inbox[self.rank]]:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


class _RankCollective:
    """One collective of one rank."""

    finished = False

    def done(self) -> bool:
        return self.finished

    def wait(self) -> None:
        if not self.finished:
            raise RankError("a rank that takes turns cannot wait: stop until done()")


class CoroutineGroup:
    """Reductions add in rank order."""

    def __init__(self, desk: Desk, own: threads.LoopbackWorld, ranks: Sequence[int]) -> None:
        self.desk, self.rank, self.ranks = desk, own.rank, tuple(ranks)
        self.before = own.group(ranks)
        self.count = 0

    @torch.no_grad()
    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        if not self.desk.begun:
            return self.before.all_reduce(tensor, op)
        self.count += 1
        self.desk.moves += 1
        key, meeting = (self.ranks, self.count), _RankCollective()
        there = self.desk.meetings.setdefault(key, {})
        there[self.rank] = tensor, meeting
        if len(there) == len(self.ranks):
            parts = [there[rank][0] for rank in self.ranks]
            total = parts[0].clone()
            for part in parts[1:]:
                total = total + part if op == "sum" else torch.maximum(total, part)
            for operand, waiting in there.values():
                operand.copy_(total)
                waiting.finished = True
            del self.desk.meetings[key]
        return meeting

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        if self.desk.begun:
            raise RankError("a broadcast between turns: what ranks agree on is agreed on while they are made")
        return self.before.broadcast(tensor, root)


class CoroutineWorld:
    """One rank's view of its desk. before: its world until turns begin"""

    staged = False
    backend, order = "memory", "any"

    def __init__(self, desk: Desk, before: threads.LoopbackWorld) -> None:
        self.desk, self.before, self.rank, self.size = desk, before, before.rank, before.size
        self.device = before.device
        self.groups: dict[tuple[int, ...], CoroutineGroup] = {}

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        return CoroutineTransport(self.desk, self.rank, before, after, stages)

    def group(self, ranks: Sequence[int]) -> Group:
        group = CoroutineGroup(self.desk, self.before, ranks)
        return self.groups.setdefault(tuple(ranks), group)  # type: ignore[return-value]  # reduces and broadcasts alone

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        self._check()
        return self.before.all_reduce_scalar(value, op, progress)

    def together(self, number: float, op: str) -> Generator[None, None, float]:
        """Generator form of `all_reduce_scalar`: the rank yields until the result is there."""
        total = torch.tensor([number], dtype=torch.float64)
        handle = self.group(range(self.size)).all_reduce(total, op)
        while not handle.done():
            yield None
        return float(total)

    def _check(self) -> None:
        if self.desk.begun and self.size > 1:
            raise RankError("a rank that takes turns is asked for a number on the spot: it would wait for ever")

    def close(self) -> None:
        """Nothing is held."""
