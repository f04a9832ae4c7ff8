"""Decides how the ranks of one process take turns without threads: each is a generator, which stops where it waits.

A collective ends when its last member has come. A rank that waits in one stops too, or, where it is asked for a number
on the spot, lets the others run meanwhile by calling `progress`. So nothing here depends on time, and every run of it
is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from suite.comm.message import receiver
from suite.core.errors import IllegalSchedule, RankError
from suite.core.op import Op
from suite.core.protocols import Group, Handle, Transport, Value

Rank = Generator[Any, None, Any]


class Desk:
    """What the ranks share: values under way, meetings, and whose turn it is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.meetings: dict[tuple[tuple[int, ...], int], dict[int, tuple[torch.Tensor, _Meeting]]] = {}
        self.shared: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
        self.moves = 0  # sends, receipts and meetings: nothing moves in a deadlock
        self.ranks: dict[int, Rank] = {}
        self.running: set[int] = set()
        self.ended: dict[int, Any] = {}
        self.told: list[Any] = []  # by rank 0, and not yet passed on

    def world(self, rank: int) -> CoroutineWorld:
        return CoroutineWorld(self, rank)

    def run(self, ranks: Sequence[Rank]) -> Generator[Any, None, list[Any]]:
        """Every rank to its end, in turns; yields what rank 0 yields, its Nones apart, and returns what all returned.
        Raises IllegalSchedule where all wait."""
        self.ranks, self.ended, self.told = dict(enumerate(ranks)), {}, []
        try:
            while len(self.ended) < len(ranks):
                before = self.moves, len(self.ended)
                for rank in range(len(ranks)):
                    self._turn(rank)
                told, self.told = self.told, []
                yield from told
                if (self.moves, len(self.ended)) == before:
                    raise IllegalSchedule("deadlock: every rank waits for another")
        finally:
            for rank in self.ranks.values():
                rank.close()
        return [self.ended[rank] for rank in range(len(ranks))]

    def others(self) -> None:
        """A rank waits: one turn for each of the others. Raises RankError where none of them can go on."""
        before = self.moves, len(self.ended)
        for rank in self.ranks:
            self._turn(rank)
        if (self.moves, len(self.ended)) == before:
            raise RankError("deadlock: a collective that not every rank comes to")

    def _turn(self, rank: int) -> None:
        """A rank goes on until it waits or has something to tell."""
        if rank in self.running or rank in self.ended:
            return
        self.running.add(rank)
        try:
            if (told := next(self.ranks[rank])) is not None:
                self.moves += 1
                self.told += [told] if rank == 0 else []
        except StopIteration as end:
            self.ended[rank] = end.value
        finally:
            self.running.discard(rank)


class CoroutineTransport:
    """Lanes as dictionaries: a value is handed over by reference, detached. Nobody waits here."""

    any_order = turns = True

    def __init__(self, desk: Desk, rank: int, before: int | None, after: int | None, stages: int) -> None:
        self.desk, self.rank, self.before, self.after, self.stages = desk, rank, before, after, stages

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        self.desk.moves += 1
        if rank is not None:
            self.desk.inbox[rank][op] = tuple(tensor.detach() for tensor in value)

    def arrived(self, wish: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        inbox = self.desk.inbox[self.rank]
        for op in wish:
            if op in inbox:
                return op, inbox.pop(op)
        return None

    def progress(self) -> None:
        self.desk.others()

    def close(self) -> None:
        if left := [str(op) for op in self.desk.inbox[self.rank]]:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(left)}")


class _Meeting:
    """One collective of one rank."""

    def __init__(self, finished: bool = False) -> None:
        self.finished = finished

    def done(self) -> bool:
        return self.finished

    def wait(self) -> None:
        if not self.finished:
            raise RankError("a rank of a process that takes turns cannot wait: poll done() and call progress()")


class CoroutineGroup:
    """Reductions add in rank order."""

    def __init__(self, desk: Desk, rank: int, ranks: Sequence[int]) -> None:
        self.desk, self.rank, self.ranks = desk, rank, tuple(ranks)
        self.count = 0

    def _key(self) -> tuple[tuple[int, ...], int]:
        self.count += 1
        self.desk.moves += 1
        return self.ranks, self.count

    @torch.no_grad()
    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        key, meeting = self._key(), _Meeting()
        there = self.desk.meetings.setdefault(key, {})
        there[self.rank] = tensor, meeting
        if len(there) == len(self.ranks):
            parts = [there[rank][0] for rank in self.ranks]
            total = parts[0].clone()
            for part in parts[1:]:
                total = total + part if op == "sum" else torch.maximum(total, part)
            for own, ended in there.values():
                own.copy_(total)
                ended.finished = True
            del self.desk.meetings[key]
        return meeting

    @torch.no_grad()
    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        """Ranks are made one after the other, the root first."""
        key = self._key()
        if self.rank == root:
            self.desk.shared[key] = tensor.clone()
        elif key not in self.desk.shared:
            raise RankError(f"rank {self.rank} receives a broadcast before rank {root} has sent it")
        else:
            tensor.copy_(self.desk.shared[key])
        return _Meeting(finished=True)


class CoroutineWorld:
    """One rank's view of its desk."""

    staged = False
    carrier, order = "memory", "any"

    def __init__(self, desk: Desk, rank: int) -> None:
        self.desk, self.rank, self.size = desk, rank, desk.size
        self.device = torch.device("cpu")
        self.groups: dict[tuple[int, ...], CoroutineGroup] = {}

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        return CoroutineTransport(self.desk, self.rank, before, after, stages)

    def group(self, ranks: Sequence[int]) -> Group:
        return self.groups.setdefault(tuple(ranks), CoroutineGroup(self.desk, self.rank, ranks))

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def total(self, number: float, progress: Callable[[], None]) -> float:
        return self._together(number, "sum", progress)

    def largest(self, number: float, progress: Callable[[], None]) -> float:
        return self._together(number, "max", progress)

    def _together(self, number: float, op: str, progress: Callable[[], None]) -> float:
        result = torch.tensor([number], dtype=torch.float64)
        handle = self.group(range(self.size)).all_reduce(result, op)
        while not handle.done():
            progress()
        return float(result)

    def close(self) -> None:
        """Nothing is held."""
