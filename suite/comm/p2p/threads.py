"""Ranks of one process that take turns: the transport of an engine without a launcher, of replays, and of tests.

Each rank is a thread, because torch keeps the gradient mode, autocast and dispatch modes of each thread apart. Rank 0
is the thread that calls the ranks. Only one of them runs at a time: a rank runs until it must wait, and then passes the
turn to the next rank that can go on. So no state needs a lock, nothing depends on time, every run is the same, and a
deadlock is found at once.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, TypeVar

import torch
from torch.distributed import HashStore

from suite.comm.p2p.message import receiver
from suite.comm.rendezvous.peer_exit import EXIT_TIMEOUT, Departures
from suite.core.errors import IllegalSchedule, InvalidRequest, RankError, SuiteError
from suite.core.op import EVALUATION_CAPACITY, Kind, Op
from suite.core.protocols import Group, Handle, Transport, Value

_T = TypeVar("_T")
_POLL = 0.05  # seconds between two looks of rank 0 at signals
CollectiveKey = tuple[str, tuple[int, ...], int]  # name and ranks of a group, and the number of the collective in it


class Hub:
    """The ranks, the turn, and the messages between ranks.

    Attributes:
        inbox: Received values of each rank.
        operands: Operands of unfinished collectives, by rank.
        packets: Unread messages of pairwise exchanges.
        active: Ranks within a call.
        errors: Errors of the ranks in the running call, in the order in which they were raised.
        failure: The error that has ended the ranks.
        store: Notes of the ranks (comm.rendezvous.peer_exit).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.operands: dict[CollectiveKey, dict[int, torch.Tensor]] = {}
        self.packets: dict[Any, torch.Tensor] = {}
        self.active: set[int] = set()
        self.errors: list[BaseException] = []
        self.failure: BaseException | None = None
        self.store = HashStore()
        self.departures = [Departures(rank, size, self.store) for rank in range(size)]
        self._waits: dict[int, Callable[[], bool]] = {}  # whether the wait of a rank is over
        self._turns = [threading.Lock() for _ in range(size)]
        for turn in self._turns:
            turn.acquire()
        self._tasks: list[deque[Callable[[], None]]] = [deque() for _ in range(size)]
        self._end_threads: Any = None

    # -- calls -------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[int], _T]) -> list[_T]:
        """`function(rank)` of every rank; the results by rank. Raises as `as_rank_0` does."""
        with self.as_rank_0(function) as results:
            results[0] = function(0)
        return [results[rank] for rank in range(self.size)]

    @contextmanager
    def as_rank_0(self, function: Callable[[int], _T]) -> Iterator[dict[int, _T]]:
        """Context in which the caller is rank 0, and every other rank runs `function(rank)` while rank 0 waits.

        Its value is the results of the other ranks, which have all ended after it. Raises the error of the first rank
        that gives a rule, else the first error. An interrupt ends the ranks. Raises InvalidRequest within a call, whose
        rank would wait for itself."""
        if self.active:
            raise InvalidRequest(
                "a call on an engine from its batches, its layers or its loss",
                rule="ranks of one process run one call at a time",
                legal="a call between two losses of train(), or ranks under mpiexec, torchrun or srun",
            )
        if self._end_threads is None:
            self._end_threads = weakref.finalize(self, _release, self._turns[1:])
            self._end_threads.atexit = False
            for rank in range(1, self.size):
                arguments = (self._turns[rank], self._tasks[rank])
                threading.Thread(target=_serve, args=arguments, name=f"rank {rank}", daemon=True).start()
        results: dict[int, _T] = {}
        self.errors, self.active = [], set(range(self.size))
        for rank in range(1, self.size):
            self._tasks[rank].append(partial(self._call, rank, function, results))
            self._waits[rank] = _always
        try:
            yield results
        except Exception as error:
            self.errors.append(error)
        except BaseException as error:  # an interrupt, or a stream that is not read to its end
            self.end(RankError("the stream was interrupted") if isinstance(error, GeneratorExit) else error)
            raise
        self.active.discard(0)
        while self.active:
            self._pause(0, lambda: not self.active)
        if self.errors:
            raise min([*self.errors, *filter(None, [self.failure])], key=_order)

    def end(self, error: BaseException, *, has_turn: bool = True) -> None:
        """End the call as rank 0, whose `error` ends the waits of the other ranks. Waits until they have ended: a
        thread in torch must not outlive the interpreter. has_turn: whether no other rank runs"""
        self.fail(error)
        self.active.discard(0)
        self._waits[0], deadline = _always, time.monotonic() + EXIT_TIMEOUT
        while (self.active or not has_turn) and time.monotonic() < deadline:
            if has_turn:
                self._pass_on(0)
            has_turn = self._turns[0].acquire(timeout=_POLL)
        del self._waits[0]

    def close(self) -> None:
        """End the threads."""
        for departures in self.departures:
            departures.leave()
        if self._end_threads is not None:
            self._end_threads()

    def _call(self, rank: int, function: Callable[[int], _T], results: dict[int, _T]) -> None:
        """Run a call on a rank, whose turn it is, and pass the turn on."""
        del self._waits[rank]
        try:
            results[rank] = function(rank)
        except BaseException as error:
            self.errors.append(error)
        self.active.discard(rank)
        self._pass_on(rank)

    # -- turns -------------------------------------------------------------------------------------------------------

    def wait(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let the other ranks run until `ready`. Raises as `check` does, and IllegalSchedule in a deadlock."""
        while not ready():
            self.check(rank)
            self._pause(rank, ready)

    def poll(self, rank: int) -> None:
        """Let each other rank run that can go on."""
        self.check(rank)
        if len(self.active) > 1:
            self._pause(rank, lambda: not self.errors)  # after an error the other ranks may poll without end

    def check(self, rank: int) -> None:
        """Raise RankError where another rank has failed, and where the notes of the ranks show that none can go on."""
        if self.failure is not None:
            raise RankError(f"another rank failed: {self.failure!r}")
        if self.store.num_keys():
            self.departures[rank].check()

    def fail(self, error: BaseException) -> None:
        """Store the first failure, which ends the wait of every rank."""
        self.failure = self.failure or error

    def _pause(self, rank: int, ready: Callable[[], bool]) -> None:
        """Let the other ranks run until `ready`, or until this rank must check why no rank can go on."""
        self._waits[rank] = ready
        self._pass_on(rank)
        try:
            while not self._turns[rank].acquire(timeout=_POLL):  # without a timeout rank 0 may miss a signal
                pass
        except BaseException as error:
            self.end(error, has_turn=False)
            raise
        del self._waits[rank]

    def _pass_on(self, rank: int) -> None:
        self._turns[self._next(rank)].release()

    def _next(self, rank: int) -> int:
        """The rank after `rank` that can go on. Where none can, a failure ends all waits."""
        order = [each % self.size for each in range(rank + 1, rank + 1 + self.size) if each % self.size in self._waits]
        for other in order:
            if self.failure is not None or self._waits[other]():
                return other
        waiting = [other for other in order if other in self.active]
        for other in (*waiting, *waiting):  # twice, as each compares its note with that of the next rank
            try:
                self.departures[other].check()
            except SuiteError:
                return other
        self.fail(self.errors[0] if self.errors else IllegalSchedule("deadlock: every rank waits for another"))
        return order[0] if order else 0


def _always() -> bool:
    return True


def _serve(turn: threading.Lock, tasks: deque[Callable[[], None]]) -> None:
    """Run the tasks of a rank, each in its turn. The thread knows its rank only within a task, and ends with it."""
    while True:
        turn.acquire()
        if not tasks:
            return
        tasks.popleft()()


def _release(turns: Sequence[threading.Lock]) -> None:
    for turn in turns:
        turn.release()


def _order(error: BaseException) -> int:
    """Errors with a reason come first: other ranks only report that one has failed."""
    if isinstance(error, RankError):
        return 2
    return 1 if isinstance(error, InvalidRequest) and not error.rule else 0


def run(size: int, rank_main: Callable[[LoopbackWorld], _T], *, device: str = "cpu") -> list[_T]:
    """Call `rank_main(world)` on `size` ranks, which compute on one device; returns their results by rank.

    The first failure ends all ranks and is raised. Raises IllegalSchedule in a deadlock.
    """
    hub = Hub(size)

    def rank_of(rank: int) -> _T:
        result = rank_main(LoopbackWorld(hub, rank, device=device))
        hub.departures[rank].leave()
        return result

    try:
        return hub.run(rank_of)
    finally:
        hub.close()


class LoopbackTransport(Transport):
    """Channels as dictionaries. The receiver copies a value, as a rank of its own does."""

    any_order = turns = True

    def __init__(self, hub: Hub, rank: int, homes: Sequence[int]) -> None:
        self.hub, self.rank, self.homes = hub, rank, homes

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        if rank is None:
            return
        inbox = self.hub.inbox[rank]
        if op.kind is Kind.EVALUATE:
            self.hub.wait(self.rank, lambda: _waiting_evaluations(inbox, op.stage) < EVALUATION_CAPACITY)
        inbox[op] = tuple(tensor.detach() for tensor in value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        """See Transport. A limit of time has no meaning here: a wait that cannot end raises."""
        inbox = self.hub.inbox[self.rank]
        if timeout != 0:
            self.hub.wait(self.rank, lambda: any(op in inbox for op in ops))
        for op in ops:
            if op in inbox:
                return op, tuple(tensor.clone() for tensor in inbox.pop(op))
        return None

    def progress(self) -> None:
        """Let the other ranks run."""
        self.hub.poll(self.rank)

    def close(self) -> None:
        unread = [str(op) for op in self.hub.inbox[self.rank]]
        if unread and self.hub.failure is None:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


def _waiting_evaluations(inbox: Iterable[Op], stage: int) -> int:
    """Unreceived evaluation values from `stage`."""
    return sum(op.kind is Kind.EVALUATE and op.stage == stage for op in inbox)


class _Pending:
    """A handle of one rank. ready: whether the other ranks have done their part"""

    def __init__(self, hub: Hub, rank: int, ready: Callable[[], bool]) -> None:
        self.hub, self.rank, self.ready = hub, rank, ready

    def done(self) -> bool:
        """Whether the operation is done. The other ranks run first."""
        self.hub.poll(self.rank)
        return self.ready()

    def wait(self) -> None:
        self.hub.wait(self.rank, self.ready)


class LoopbackGroup:
    """A group of ranks. Reductions add in rank order."""

    def __init__(self, hub: Hub, rank: int, ranks: Sequence[int], name: str = "") -> None:
        self.hub, self.rank, self.ranks, self.name = hub, rank, tuple(ranks), name
        self.count = 0
        self.message_counts: dict[tuple[int, int], int] = {}  # by source and target rank

    @torch.no_grad()
    def _collect(self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Handle:
        """Begin a collective. The last rank that calls it copies the result to all operands."""
        key: CollectiveKey = (self.name, self.ranks, self.count)
        self.count += 1
        operands = self.hub.operands.setdefault(key, {})
        operands[self.rank] = tensor
        if len(operands) == len(self.ranks):
            combined = combine([operands[rank] for rank in self.ranks])
            for operand in operands.values():
                operand.copy_(combined)
            del self.hub.operands[key]
        return _Pending(self.hub, self.rank, lambda: key not in self.hub.operands)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        return self._collect(tensor, partial(reduce, torch.add if op == "sum" else torch.maximum))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Handle:
        return self._collect(tensor, lambda operands: operands[self.ranks.index(root)])

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
        packets = self.hub.packets
        for rank, tensor in sends:
            packets[self._next_key(self.rank, rank)] = tensor.detach().clone()
        pending = [(self._next_key(rank, self.rank), tensor) for rank, tensor in receives]

        @torch.no_grad()
        def ready() -> bool:
            if not all(key in packets for key, _ in pending):
                return False
            while pending:
                key, tensor = pending.pop()
                tensor.copy_(packets.pop(key))
            return True

        return _Pending(self.hub, self.rank, ready)

    def _next_key(self, source: int, target: int) -> Any:
        """The key of the next message between two ranks. Both ends count their messages, and agree."""
        number = self.message_counts[source, target] = self.message_counts.get((source, target), 0) + 1
        return self.ranks, source, target, number


class LoopbackWorld:
    """The world of one rank."""

    staged = False
    backend, order = "threads", "any"

    def __init__(self, hub: Hub, rank: int, *, device: str = "cpu") -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.device = torch.device(device)
        self.groups: dict[tuple[int, ...], LoopbackGroup] = {}
        self.numbers = LoopbackGroup(hub, rank, range(hub.size), "numbers")
        self.departures = hub.departures[rank]

    def transport(self, homes: Sequence[int]) -> Transport:
        return LoopbackTransport(self.hub, self.rank, homes)

    def group(self, ranks: Sequence[int]) -> Group:
        return self.groups.setdefault(tuple(ranks), LoopbackGroup(self.hub, self.rank, ranks))

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def all_reduce_numbers(self, numbers: Sequence[float], op: str, progress: Callable[[], None]) -> list[float]:
        reduced = torch.tensor(numbers, dtype=torch.float64)
        self.numbers.all_reduce(reduced, op).wait()
        return list(map(float, reduced))

    def close(self) -> None:
        """No resources to release."""
