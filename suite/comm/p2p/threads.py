"""Ranks as threads of one process: the transport of tests, and of a single rank.

It is a full implementation of the interfaces, not a mock: the same engine runs on it, value by value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from suite.comm.p2p.message import CAPACITY, receiver
from suite.comm.rendezvous.departures import Departures
from suite.comm.rendezvous.process_exit import LEAVE
from suite.core.errors import RankError, RankTimeout
from suite.core.op import Kind, Op
from suite.core.protocols import Group, Handle, Transport, Value


class Hub:
    """State shared by the threads: mailboxes, collectives, and the first failure, which wakes all threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.meetings: dict[tuple[tuple[int, ...], int], dict[int, torch.Tensor]] = {}
        self.results: dict[tuple[tuple[int, ...], int], list[Any]] = {}
        self.parcels: dict[Any, torch.Tensor] = {}  # between two threads
        self.failure: BaseException | None = None
        self.notes: dict[str, list[str]] = {}
        self.departures = [Departures(rank, size, self) for rank in range(size)]

    # -- notes of ranks that have ended (comm.departures) ------------------------------------------------------------

    def write(self, name: str, note: str) -> None:
        with self.changed:
            self.notes.setdefault(name, []).append(note)
            self.changed.notify_all()

    def read(self, name: str, known: int) -> list[str]:
        return self.notes.get(name, [])[known:]

    def look(self, rank: int) -> None:
        """Raises RankError where another rank has failed, or has ended and is still needed."""
        if self.failure is not None:
            raise RankError(f"another rank failed: {self.failure!r}")
        if self.notes:
            self.departures[rank].look()

    def lost(self, rank: int) -> bool:
        try:
            self.look(rank)
        except RankError:
            return True
        return False

    # -- meetings ----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def wait(self, rank: int, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Hold `changed` while calling. Raises as `look` does."""
        ready_in_time = self.changed.wait_for(lambda: ready() or self.lost(rank), timeout)
        if not ready():
            self.look(rank)
        return ready_in_time


def run(size: int, rank_main: Callable[[LoopbackWorld], Any], *, deadline: float | None = 300.0) -> list[Any]:
    """Call `rank_main(world)` in `size` threads; their results by rank. The first failure ends all, and is raised;
    `deadline` seconds without an end (a deadlock) are one."""
    hub = Hub(size)
    outputs: list[Any] = [None] * size

    def one(rank: int) -> None:
        try:
            outputs[rank] = rank_main(LoopbackWorld(hub, rank))
            hub.departures[rank].leave()
        except BaseException as error:
            hub.fail(error)

    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    end = None if deadline is None else time.monotonic() + deadline
    for thread in threads:
        thread.join(None if end is None else max(0.0, end - time.monotonic()))
        if thread.is_alive():
            hub.fail(RankTimeout(f"{thread.name} was not done in {deadline:g} s"))
    end = time.monotonic() + LEAVE
    for thread in threads:  # the failure wakes all waiting threads: none may outlive the interpreter
        thread.join(max(0.0, end - time.monotonic()))
    if hub.failure is not None:
        raise hub.failure
    return outputs


class LoopbackTransport(Transport):
    """Channels as dictionaries: a value is handed over by reference, detached."""

    any_order = True

    def __init__(self, hub: Hub, rank: int, before: int | None, after: int | None, stages: int) -> None:
        self.hub, self.rank, self.before, self.after, self.stages = hub, rank, before, after, stages

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is None:
            return
        inbox = self.hub.inbox[rank]
        value = tuple(tensor.detach() for tensor in value)
        with self.hub.changed:
            if op.kind is Kind.EVALUATE:
                self.hub.wait(self.rank, lambda: sum(o.kind is Kind.EVALUATE for o in inbox) < CAPACITY)
            inbox[op] = value
            self.hub.changed.notify_all()

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        inbox = self.hub.inbox[self.rank]
        with self.hub.changed:
            if timeout != 0:
                self.hub.wait(self.rank, lambda: any(op in inbox for op in ops), timeout)
            for op in ops:
                if op in inbox:
                    value = inbox.pop(op)
                    self.hub.changed.notify_all()
                    return op, value
        return None

    def progress(self) -> None:
        self.hub.look(self.rank)

    def close(self) -> None:
        unread = [str(op) for op in self.hub.inbox[self.rank]]
        if unread and self.hub.failure is None:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


class _ThreadCollective:
    """One collective of one rank: done when all members have come."""

    def __init__(self, group: LoopbackGroup, tensor: torch.Tensor, key: tuple[tuple[int, ...], int]) -> None:
        self.group, self.tensor, self.key = group, tensor, key
        self.finished = False

    def done(self) -> bool:
        hub = self.group.hub
        with hub.changed:
            if not self.finished and self.key in hub.results:
                waiting = hub.results[self.key]
                self.tensor.copy_(waiting[0])
                waiting[1] -= 1
                if waiting[1] == 0:
                    del hub.results[self.key]
                self.finished = True
        return self.finished

    def wait(self) -> None:
        with self.group.hub.changed:
            self.group.hub.wait(self.group.rank, lambda: self.finished or self.key in self.group.hub.results)
        self.done()


class _Come:
    """An exchange of one rank: done when all its senders have delivered."""

    def __init__(self, hub: Hub, rank: int, wanted: Sequence[tuple[Any, torch.Tensor]]) -> None:
        self.hub, self.rank, self.wanted = hub, rank, list(wanted)

    def done(self) -> bool:
        with self.hub.changed:
            here = [pair for pair in self.wanted if pair[0] in self.hub.parcels]
            for key, tensor in here:
                tensor.copy_(self.hub.parcels.pop(key))
            self.wanted = [pair for pair in self.wanted if not any(pair is one for one in here)]
            return not self.wanted

    def wait(self) -> None:
        with self.hub.changed:
            self.hub.wait(self.rank, lambda: all(key in self.hub.parcels for key, _ in self.wanted))
        self.done()


class LoopbackGroup:
    """Reductions add in rank order."""

    def __init__(self, hub: Hub, rank: int, ranks: Sequence[int]) -> None:
        self.hub, self.rank, self.ranks = hub, rank, tuple(ranks)
        self.count = 0
        self.between: dict[tuple[int, int], int] = {}  # messages from one rank to another

    def _meet(self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Handle:
        key = (self.ranks, self.count)
        self.count += 1
        with self.hub.changed:
            parts = self.hub.meetings.setdefault(key, {})
            parts[self.rank] = tensor
            if len(parts) == len(self.ranks):
                combined = combine([parts[rank].detach() for rank in self.ranks])
                self.hub.results[key] = [combined, len(self.ranks)]
                del self.hub.meetings[key]
                self.hub.changed.notify_all()
        return _ThreadCollective(self, tensor, key)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        def combine(parts: list[torch.Tensor]) -> torch.Tensor:
            total = parts[0].clone()
            for part in parts[1:]:
                total = total + part if op == "sum" else torch.maximum(total, part)
            return total

        return self._meet(tensor, combine)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        return self._meet(tensor, lambda parts: parts[self.ranks.index(root)].clone())

    def all_to_all(
        self,
        recv_buffer: torch.Tensor,
        send_buffer: torch.Tensor,
        *,
        recv_counts: Sequence[int],
        send_counts: Sequence[int],
    ) -> Handle:
        others = [rank for rank in self.ranks if rank != self.rank]
        parts, rooms = send_buffer.split(list(send_counts)), recv_buffer.split(list(recv_counts))
        at = self.ranks.index
        rooms[at(self.rank)].copy_(parts[at(self.rank)])
        return self.pairwise([(rank, parts[at(rank)]) for rank in others], [(rank, rooms[at(rank)]) for rank in others])

    def pairwise(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Handle:
        with self.hub.changed:
            for rank, tensor in sends:
                self.hub.parcels[self._next(self.rank, rank)] = tensor.detach().clone()
            incoming = [(self._next(rank, self.rank), tensor) for rank, tensor in receives]
            self.hub.changed.notify_all()
        return _Come(self.hub, self.rank, incoming)

    def _next(self, source: int, target: int) -> Any:
        """A name that both ends give to a message between them, as both count theirs."""
        number = self.between[source, target] = self.between.get((source, target), 0) + 1
        return self.ranks, source, target, number


class LoopbackWorld:
    """One thread's view of its hub."""

    staged = False
    backend, order = "threads", "any"

    def __init__(self, hub: Hub, rank: int, *, device: str = "cpu") -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.device = torch.device(device)
        self.groups: dict[tuple[int, ...], LoopbackGroup] = {}
        self.departures = hub.departures[rank]

    def transport(self, before: int | None, after: int | None, stages: int) -> Transport:
        return LoopbackTransport(self.hub, self.rank, before, after, stages)

    def group(self, ranks: Sequence[int]) -> Group:
        return self.groups.setdefault(tuple(ranks), LoopbackGroup(self.hub, self.rank, ranks))

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        reduced = torch.tensor([value], dtype=torch.float64)
        self.group(range(self.size)).all_reduce(reduced, op).wait()
        return float(reduced)

    def close(self) -> None:
        """Nothing is held."""
