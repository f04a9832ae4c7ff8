"""Ranks as threads of one process: the transport of tests, and of a single rank.

It implements the full interfaces and is no mock: the same engine runs on it, with the same values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import torch

from suite.comm.p2p.message import receiver
from suite.comm.rendezvous.departures import Departures
from suite.comm.rendezvous.process_exit import EXIT_TIMEOUT
from suite.core.errors import RankError, RankTimeout
from suite.core.op import EVALUATION_CAPACITY, Kind, Op
from suite.core.protocols import Group, Handle, Transport, Value

CollectiveKey = tuple[tuple[int, ...], int]  # ranks of a group, and the number of the collective in it


class Hub:
    """State shared by the threads.

    Attributes:
        changed: Condition that guards all state.
        inbox: Received values of each rank.
        operands: Operands of unfinished collectives, by rank.
        results: Result of each finished collective, and the number of ranks that still read it.
        packets: Unread messages of pairwise exchanges.
        failure: The first failure, which wakes all threads.
        notes: Notes of departed ranks, by list (comm.rendezvous.departures).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.operands: dict[CollectiveKey, dict[int, torch.Tensor]] = {}
        self.results: dict[CollectiveKey, list[Any]] = {}
        self.packets: dict[Any, torch.Tensor] = {}
        self.failure: BaseException | None = None
        self.notes: dict[str, list[str]] = {}
        self.departures = [Departures(rank, size, self) for rank in range(size)]

    def write(self, name: str, note: str) -> None:
        """Append a note to the list `name`, as a NoteBoard does."""
        with self.changed:
            self.notes.setdefault(name, []).append(note)
            self.changed.notify_all()

    def read(self, name: str, start: int) -> list[str]:
        return self.notes.get(name, [])[start:]

    def check(self, rank: int) -> None:
        """Raise RankError where another rank has failed, or has departed although `rank` needs it."""
        if self.failure is not None:
            raise RankError(f"another rank failed: {self.failure!r}")
        if self.notes:
            self.departures[rank].check()

    def _check_fails(self, rank: int) -> bool:
        try:
            self.check(rank)
        except RankError:
            return True
        return False

    def fail(self, error: BaseException) -> None:
        """Store the first failure and wake all threads."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def wait(self, rank: int, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `ready` is true. The caller holds `changed`. Raises as `check` does."""
        ready_in_time = self.changed.wait_for(lambda: ready() or self._check_fails(rank), timeout)
        if not ready():
            self.check(rank)
        return ready_in_time


def run(
    size: int, rank_main: Callable[[LoopbackWorld], Any], *, device: str = "cpu", deadline: float | None = 300.0
) -> list[Any]:
    """Call `rank_main(world)` in `size` threads, which compute on one device; returns their results by rank.

    The first failure ends all threads and is raised. Raises RankTimeout where a thread runs for more than `deadline`
    seconds, as in a deadlock.
    """
    hub = Hub(size)
    outputs: list[Future[Any]] = [Future() for _ in range(size)]  # an interrupted Thread.join loses sight of its thread

    def run_rank(rank: int) -> None:
        output = None
        try:
            output = rank_main(LoopbackWorld(hub, rank, device=device))
            hub.departures[rank].leave()
        except BaseException as error:
            hub.fail(error)
        finally:
            outputs[rank].set_result(output)

    try:
        for rank in range(size):
            threading.Thread(target=run_rank, args=(rank,), name=f"rank {rank}", daemon=True).start()
        if late := wait(outputs, deadline).not_done:
            hub.fail(RankTimeout(f"rank {min(map(outputs.index, late))} was not done in {deadline:g} s"))
    except BaseException as error:  # an interrupt of the main thread
        hub.fail(error)
        raise
    finally:  # a failure wakes all waiting threads: one in torch aborts a process whose interpreter ends
        wait(outputs, EXIT_TIMEOUT)
    if hub.failure is not None:
        raise hub.failure
    return [output.result() for output in outputs]


class LoopbackTransport(Transport):
    """Channels as dictionaries: a value is passed by reference, detached."""

    any_order = True

    def __init__(self, hub: Hub, rank: int, homes: Sequence[int]) -> None:
        self.hub, self.rank, self.homes = hub, rank, homes

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        if rank is None:
            return
        inbox = self.hub.inbox[rank]
        value = tuple(tensor.detach() for tensor in value)
        with self.hub.changed:
            if op.kind is Kind.EVALUATE:
                self.hub.wait(self.rank, lambda: _waiting_evaluations(inbox, op.stage) < EVALUATION_CAPACITY)
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
        self.hub.check(self.rank)

    def close(self) -> None:
        unread = [str(op) for op in self.hub.inbox[self.rank]]
        if unread and self.hub.failure is None:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


def _waiting_evaluations(inbox: Iterable[Op], stage: int) -> int:
    """Unreceived evaluation values from `stage`."""
    return sum(op.kind is Kind.EVALUATE and op.stage == stage for op in inbox)


class _ThreadCollective:
    """A collective of one rank, done when all ranks of the group have called it."""

    def __init__(self, group: LoopbackGroup, tensor: torch.Tensor, key: CollectiveKey) -> None:
        self.group, self.tensor, self.key = group, tensor, key
        self.finished = False

    def done(self) -> bool:
        hub = self.group.hub
        with hub.changed:
            if not self.finished and self.key in hub.results:
                result = hub.results[self.key]
                self.tensor.copy_(result[0])
                result[1] -= 1
                if result[1] == 0:
                    del hub.results[self.key]
                self.finished = True
        return self.finished

    def wait(self) -> None:
        with self.group.hub.changed:
            self.group.hub.wait(self.group.rank, lambda: self.finished or self.key in self.group.hub.results)
        self.done()


class _PairwiseReceive:
    """The receives of one rank in a pairwise exchange."""

    def __init__(self, hub: Hub, rank: int, pending: Sequence[tuple[Any, torch.Tensor]]) -> None:
        self.hub, self.rank, self.pending = hub, rank, list(pending)

    def done(self) -> bool:
        with self.hub.changed:
            pending = []
            for key, tensor in self.pending:
                if key in self.hub.packets:
                    tensor.copy_(self.hub.packets.pop(key))
                else:
                    pending.append((key, tensor))
            self.pending = pending
            return not pending

    def wait(self) -> None:
        with self.hub.changed:
            self.hub.wait(self.rank, lambda: all(key in self.hub.packets for key, _ in self.pending))
        self.done()


class LoopbackGroup:
    """A group of threads. Reductions add in rank order."""

    def __init__(self, hub: Hub, rank: int, ranks: Sequence[int]) -> None:
        self.hub, self.rank, self.ranks = hub, rank, tuple(ranks)
        self.count = 0
        self.message_counts: dict[tuple[int, int], int] = {}  # by source and target rank

    def _collect(self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Handle:
        key = (self.ranks, self.count)
        self.count += 1
        with self.hub.changed:
            operands = self.hub.operands.setdefault(key, {})
            operands[self.rank] = tensor
            if len(operands) == len(self.ranks):
                combined = combine([operands[rank].detach() for rank in self.ranks])
                self.hub.results[key] = [combined, len(self.ranks)]
                del self.hub.operands[key]
                self.hub.changed.notify_all()
        return _ThreadCollective(self, tensor, key)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        return self._collect(tensor, lambda operands: reduce_in_order(operands, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        return self._collect(tensor, lambda operands: operands[self.ranks.index(root)].clone())

    def all_to_all(
        self,
        recv_buffer: torch.Tensor,
        send_buffer: torch.Tensor,
        *,
        recv_counts: Sequence[int],
        send_counts: Sequence[int],
    ) -> Handle:
        outputs = dict(zip(self.ranks, send_buffer.split(list(send_counts)), strict=True))
        inputs = dict(zip(self.ranks, recv_buffer.split(list(recv_counts)), strict=True))
        inputs.pop(self.rank).copy_(outputs.pop(self.rank))
        return self.pairwise(list(outputs.items()), list(inputs.items()))

    def pairwise(
        self, sends: Sequence[tuple[int, torch.Tensor]], receives: Sequence[tuple[int, torch.Tensor]]
    ) -> Handle:
        with self.hub.changed:
            for rank, tensor in sends:
                self.hub.packets[self._next_key(self.rank, rank)] = tensor.detach().clone()
            pending = [(self._next_key(rank, self.rank), tensor) for rank, tensor in receives]
            self.hub.changed.notify_all()
        return _PairwiseReceive(self.hub, self.rank, pending)

    def _next_key(self, source: int, target: int) -> Any:
        """The key of the next message between two ranks. Both ends count their messages, and agree."""
        number = self.message_counts[source, target] = self.message_counts.get((source, target), 0) + 1
        return self.ranks, source, target, number


def reduce_in_order(operands: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """The sum or the maximum of tensors, added from the first to the last."""
    total = operands[0].clone()
    for operand in operands[1:]:
        total = total + operand if op == "sum" else torch.maximum(total, operand)
    return total


class LoopbackWorld:
    """The world of one thread."""

    staged = False
    backend, order = "threads", "any"

    def __init__(self, hub: Hub, rank: int, *, device: str = "cpu") -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.device = torch.device(device)
        self.groups: dict[tuple[int, ...], LoopbackGroup] = {}
        self.departures = hub.departures[rank]

    def transport(self, homes: Sequence[int]) -> Transport:
        return LoopbackTransport(self.hub, self.rank, homes)

    def group(self, ranks: Sequence[int]) -> Group:
        return self.groups.setdefault(tuple(ranks), LoopbackGroup(self.hub, self.rank, ranks))

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_scalar(self, value: float, op: str, progress: Callable[[], None]) -> float:
        reduced = torch.tensor([value], dtype=torch.float64)
        self.group(range(self.size)).all_reduce(reduced, op).wait()
        return float(reduced)

    def close(self) -> None:
        """No resources to release."""
