"""Ranks of one process that take turns: the transport of an engine without a launcher, of replays, and of tests.

Each rank is a thread, because torch keeps the gradient mode, autocast and dispatch modes of each thread apart. Only one
of them runs at a time: a rank runs until it must wait, and then passes the turn to the next rank that can go on. So no
state needs a lock, nothing depends on time, every run is the same, and a deadlock is found at once. The thread that
calls the ranks takes turns with them.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from suite.comm.p2p.message import receiver
from suite.comm.rendezvous.peer_exit import Departures
from suite.comm.rendezvous.process_exit import EXIT_TIMEOUT
from suite.core.errors import IllegalSchedule, InvalidRequest, RankError, RankTimeout, SuiteError
from suite.core.op import EVALUATION_CAPACITY, Kind, Op
from suite.core.protocols import Group, Handle, Transport, Value

_T = TypeVar("_T")
_POLL = 0.05  # seconds between two looks of the caller at signals and at the time
CollectiveKey = tuple[str, tuple[int, ...], int]  # name and ranks of a group, and the number of the collective in it


class _Wait(NamedTuple):
    """What a thread waits for.

    Attributes:
        ready: Whether the wait is over.
        limited: Whether the wait also ends where no thread can go on, once for each state of the messages.
        polls: Whether it ends then every time.
    """

    ready: Callable[[], bool]
    limited: bool = False
    polls: bool = False


class Hub:
    """The ranks, the turn, and the messages between ranks.

    Attributes:
        inbox: Received values of each rank.
        operands: Operands and handles of unfinished collectives, by rank.
        packets: Unread messages of pairwise exchanges.
        progress: Number of messages and collective calls so far. In a deadlock it stays the same.
        active: Ranks within a call.
        errors: Errors of the ranks in the running call, in the order in which they were raised.
        failure: The error that has ended the ranks.
        lists, notes: Notes of the ranks by name, as a NoteBoard holds them (comm.rendezvous.peer_exit).
    """

    def __init__(self, size: int) -> None:
        self.size, self.caller = size, size
        self.inbox: list[dict[Op, Value]] = [{} for _ in range(size)]
        self.operands: dict[CollectiveKey, dict[int, tuple[torch.Tensor, _PendingCollective]]] = {}
        self.packets: dict[Any, torch.Tensor] = {}
        self.progress = 0
        self.active: set[int] = set()
        self.errors: list[BaseException] = []
        self.failure: BaseException | None = None
        self.lists, self.notes = dict[str, list[str]](), dict[str, str]()
        self.departures = [Departures(rank, size, self) for rank in range(size)]
        self._waits: dict[int, _Wait] = {}
        self._ended_at: dict[int, int] = {}  # progress at which a limited wait of a rank last ended
        self._turns = [threading.Lock() for _ in range(size + 1)]
        for turn in self._turns:
            turn.acquire()
        self._holder = size
        self._tasks: list[deque[Callable[[], None]]] = [deque() for _ in range(size)]
        self._end: Callable[[], Any] | None = None

    # -- notes of ranks ----------------------------------------------------------------------------------------------

    def write(self, name: str, note: str) -> None:
        """Append a note to the list `name`, as a NoteBoard does."""
        self.lists.setdefault(name, []).append(note)

    def read(self, name: str, start: int) -> list[str]:
        return self.lists.get(name, [])[start:]

    def replace(self, name: str, note: str) -> None:
        self.notes[name] = note

    def find(self, name: str) -> str | None:
        return self.notes.get(name)

    def check(self, rank: int) -> None:
        """Raise RankError where another rank has failed, and where the notes of the ranks show that none can go on."""
        if self.failure is not None:
            raise RankError(f"another rank failed: {self.failure!r}")
        if self.lists or self.notes:
            self.departures[rank].check()

    def _check_fails(self, rank: int) -> bool:
        try:
            self.departures[rank].check()
        except SuiteError:
            return True
        return False

    def fail(self, error: BaseException) -> None:
        """Store the first failure, which ends the wait of every rank."""
        self.failure = self.failure or error

    # -- turns -------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[[int], _T], deadline: float | None = None) -> list[_T]:
        """`function(rank)` of every rank; the results by rank. Raises as `join` does."""
        results = self.start(function)
        self.join(deadline=deadline)
        return [results[rank] for rank in range(self.size)]

    def start(self, function: Callable[[int], _T]) -> dict[int, _T]:
        """Prepare `function(rank)` of every rank, which runs while the caller waits. Returns the results by rank.

        Raises InvalidRequest within a call, whose rank would wait for itself."""
        if self.active:
            raise InvalidRequest(
                "a call on an engine from its batches, its layers or its loss",
                rule="ranks of one process run one call at a time",
                legal="a call between two losses of train(), or ranks under mpiexec, torchrun or srun",
            )
        if self._end is None:
            self._end = weakref.finalize(self, _end_threads, self._turns[: self.size])
            self._end.atexit = False
            for rank, turn in enumerate(self._turns[: self.size]):
                arguments = (turn, self._tasks[rank])
                threading.Thread(target=_serve, args=arguments, name=f"rank {rank}", daemon=True).start()
        results: dict[int, _T] = {}
        self.errors, self.active = [], set(range(self.size))
        for rank in range(self.size):
            self._tasks[rank].append(partial(self._call, rank, function, results))
            self._waits[rank] = _Wait(_always)
        return results

    def join(self, ready: Callable[[], bool] = lambda: False, deadline: float | None = None) -> None:
        """Let the ranks run until all have ended, or `ready` is true.

        Raises the error of the first rank that gives a rule, else the first error, and RankTimeout after `deadline`
        seconds. An interrupt ends the ranks."""
        self._waits[self.caller] = _Wait(lambda: not self.active or ready())
        late = math.inf if deadline is None else time.monotonic() + deadline
        try:
            given = self._pass_on(self.caller)
            while given and not self._turns[self.caller].acquire(timeout=_POLL):  # without end it may miss a signal
                if time.monotonic() > late:
                    raise RankTimeout(f"rank {self._holder} was not done in {deadline:g} s")
            del self._waits[self.caller]
        except BaseException as error:
            self.end(error)
            raise
        if not self.active and self.errors:
            raise min([*self.errors, *filter(None, [self.failure])], key=_order)

    def end(self, error: BaseException) -> None:
        """End the waits of the ranks by `error`, and wait until they have ended: a thread in torch must not outlive
        the interpreter."""
        self.fail(error)
        self._waits[self.caller], deadline = _Wait(lambda: not self.active), time.monotonic() + EXIT_TIMEOUT
        turn = self._turns[self.caller]
        while self.active and time.monotonic() < deadline:
            if self._holder == self.caller:
                turn.acquire(blocking=False)
                self._pass_on(self.caller)
            turn.acquire(timeout=_POLL)
        del self._waits[self.caller]

    def close(self) -> None:
        """End the threads."""
        for departures in self.departures:
            departures.leave()
        if self._end is not None:
            self._end()

    def wait(self, rank: int, ready: Callable[[], bool], *, limited: bool = False, polls: bool = False) -> bool:
        """Let the other ranks run until `ready`.

        Returns False where a limited wait, or a poll, ends because no rank can go on. Raises as `check` does, and
        IllegalSchedule in a deadlock."""
        if not ready():
            self.check(rank)
            self._waits[rank] = _Wait(ready, limited or polls, polls)
            if self._pass_on(rank):
                self._turns[rank].acquire()
            del self._waits[rank]
            if not ready():
                self.check(rank)
                return False
        return True

    def _call(self, rank: int, function: Callable[[int], _T], results: dict[int, _T]) -> None:
        """Run a call on a rank, whose turn it is, and pass the turn on."""
        del self._waits[rank]
        try:
            results[rank] = function(rank)
        except BaseException as error:
            self.errors.append(error)
        self.active.discard(rank)
        self._pass_on(rank)

    def _pass_on(self, rank: int) -> bool:
        """Give the turn to the next thread. Returns whether it is another one."""
        following = self._next(rank)
        if following != rank:
            self._holder = following
            self._turns[following].release()
        return following != rank

    def _next(self, rank: int) -> int:
        """The thread after `rank` that can go on. Where none can, a failure ends all waits."""
        count = self.size + 1
        order = [other % count for other in range(rank + 1, rank + 1 + count) if other % count in self._waits]
        for other in order:
            if self._waits[other].ready() or (self.failure is not None and other != self.caller):
                return other
        ranks = [other for other in order if other != self.caller]
        if not ranks:  # the caller no longer waits for a rank that took too long
            return rank
        for other in (*ranks, *ranks):  # twice, as each compares its note with that of the next rank
            if self._check_fails(other):
                return other
        for other in ranks:
            if self._waits[other].limited and self._ended_at.get(other) != self.progress:
                self._ended_at[other] = self.progress
                return other
        polling = [other for other in ranks if self._waits[other].polls]
        if polling and not self.errors:
            return polling[0]
        self.fail(self.errors[0] if self.errors else IllegalSchedule("deadlock: every rank waits for another"))
        return ranks[0]


def _always() -> bool:
    return True


def _serve(turn: threading.Lock, tasks: deque[Callable[[], None]]) -> None:
    """Run the tasks of a rank, each in its turn. The thread knows its rank only within a task, and ends with it."""
    while True:
        turn.acquire()
        if not tasks:
            return
        tasks.popleft()()


def _end_threads(turns: Sequence[threading.Lock]) -> None:
    for turn in turns:
        turn.release()


def _order(error: BaseException) -> int:
    """Errors with a reason come first: other ranks only report that one has failed."""
    if isinstance(error, RankError):
        return 2
    return 1 if isinstance(error, InvalidRequest) and not error.rule else 0


def run(
    size: int, rank_main: Callable[[LoopbackWorld], _T], *, device: str = "cpu", deadline: float | None = 300.0
) -> list[_T]:
    """Call `rank_main(world)` on `size` ranks, which compute on one device; returns their results by rank.

    The first failure ends all ranks and is raised. Raises IllegalSchedule in a deadlock, and RankTimeout where the
    ranks run for more than `deadline` seconds.
    """
    hub = Hub(size)

    def rank_of(rank: int) -> _T:
        result = rank_main(LoopbackWorld(hub, rank, device=device))
        hub.departures[rank].leave()
        return result

    try:
        return hub.run(rank_of, deadline)
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
        self.hub.progress += 1

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        inbox = self.hub.inbox[self.rank]
        if timeout != 0:
            self.hub.wait(self.rank, lambda: any(op in inbox for op in ops), limited=timeout is not None)
        for op in ops:
            if op in inbox:
                self.hub.progress += 1
                return op, tuple(tensor.clone() for tensor in inbox.pop(op))
        return None

    def progress(self) -> None:
        """Let the other ranks run until none can go on."""
        self.hub.check(self.rank)
        if len(self.hub.active) > 1:
            self.hub.wait(self.rank, lambda: False, polls=True)

    def complete(self, handle: Handle) -> None:
        self.hub.wait(self.rank, handle.ready if isinstance(handle, _Pending) else handle.done)

    def close(self) -> None:
        unread = [str(op) for op in self.hub.inbox[self.rank]]
        if unread and self.hub.failure is None:
            raise RankError(f"rank {self.rank} closes with values unreceived: {', '.join(unread)}")


def _waiting_evaluations(inbox: Iterable[Op], stage: int) -> int:
    """Unreceived evaluation values from `stage`."""
    return sum(op.kind is Kind.EVALUATE and op.stage == stage for op in inbox)


class _Pending:
    """A handle of one rank. A rank that asks whether it is done lets the others run first."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def ready(self) -> bool:
        """Whether the other ranks have done their part."""
        raise NotImplementedError

    def done(self) -> bool:
        return self.hub.wait(self.rank, self.ready, polls=True)

    def wait(self) -> None:
        self.hub.wait(self.rank, self.ready)


class _PendingCollective(_Pending):
    """A collective, which is done when all ranks of the group have called it."""

    finished = False

    def ready(self) -> bool:
        return self.finished


class _PairwiseReceive(_Pending):
    """The receives of a pairwise exchange."""

    def __init__(self, hub: Hub, rank: int, receives: Sequence[tuple[Any, torch.Tensor]]) -> None:
        super().__init__(hub, rank)
        self.receives = list(receives)

    @torch.no_grad()
    def ready(self) -> bool:
        if not all(key in self.hub.packets for key, _ in self.receives):
            return False
        while self.receives:
            key, tensor = self.receives.pop()
            tensor.copy_(self.hub.packets.pop(key))
        return True


class LoopbackGroup:
    """A group of ranks. Reductions add in rank order."""

    def __init__(self, hub: Hub, rank: int, ranks: Sequence[int], name: str = "") -> None:
        self.hub, self.rank, self.ranks, self.name = hub, rank, tuple(ranks), name
        self.count = 0
        self.message_counts: dict[tuple[int, int], int] = {}  # by source and target rank

    @torch.no_grad()
    def _collect(self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]) -> Handle:
        """Begin a collective. The last rank that calls it copies the result to all operands."""
        key, collective = (self.name, self.ranks, self.count), _PendingCollective(self.hub, self.rank)
        self.count += 1
        self.hub.progress += 1
        operands = self.hub.operands.setdefault(key, {})
        operands[self.rank] = tensor, collective
        if len(operands) == len(self.ranks):
            combined = combine([operands[rank][0] for rank in self.ranks])
            for operand, waiting in operands.values():
                operand.copy_(combined)
                waiting.finished = True
            del self.hub.operands[key]
        return collective

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Handle:
        return self._collect(tensor, lambda operands: _reduce_in_order(operands, op))

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
        for rank, tensor in sends:
            self.hub.packets[self._next_key(self.rank, rank)] = tensor.detach().clone()
        self.hub.progress += 1
        return _PairwiseReceive(self.hub, self.rank, [(self._next_key(rank, self.rank), t) for rank, t in receives])

    def _next_key(self, source: int, target: int) -> Any:
        """The key of the next message between two ranks. Both ends count their messages, and agree."""
        number = self.message_counts[source, target] = self.message_counts.get((source, target), 0) + 1
        return self.ranks, source, target, number


def _reduce_in_order(operands: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """The sum or the maximum of tensors, added from the first to the last."""
    total = operands[0].clone()
    for operand in operands[1:]:
        total = total + operand if op == "sum" else torch.maximum(total, operand)
    return total


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
