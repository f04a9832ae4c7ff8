"""Channels over gloo: one receiving thread per neighbour, and one mailbox per rank.

gloo has no wait for the first of several messages, and its test for one is false until somebody waits. So a thread
waits on every channel, and the rank itself waits on the mailbox. Because the other side always receives, a send is soon
done, and nothing has to be moved in between. Messages have MPI's format: a header with the values inside or after it.
A receiving thread must end before the interpreter does: a thread that wakes up in C++ later aborts the process."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from suite.comm.p2p.message import CAPACITY, CLOSING, pack, receiver, unpack
from suite.comm.p2p.polling import LOOK, look_around
from suite.comm.rendezvous.process_exit import LEAVE, closed_early, deserted, raised
from suite.core.errors import PeerEnded, RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value

if TYPE_CHECKING:
    from suite.comm.collective.process_group import TorchWorld

_UNDER_WAY = 2  # values being sent per channel before the oldest is waited for
_UNUSED = 0  # a tag that no transport uses


class GlooTransport(Transport):
    """Channels to the stage before and the stage after, on host memory; values on a device are copied on the way."""

    def __init__(self, world: TorchWorld, before: int | None, after: int | None, stages: int) -> None:
        self.any_order = world.order == "any"
        self.world, self.before, self.after, self.stages = world, before, after, stages
        self.head, self.body = world.tags()
        neighbours = [rank for rank in (before, after) if rank is not None]
        self.sending: dict[int, deque[tuple[list[Any], Any]]] = {rank: deque() for rank in neighbours}
        self.mailbox: dict[Op, Value] = {}
        self.changed = threading.Condition()
        self.failure: BaseException | None = None
        self.gone: set[int] = set()  # neighbours that have closed
        self.closed = False
        self.listeners = [
            threading.Thread(target=self._listen, args=(rank,), name=f"channel from rank {rank}", daemon=True)
            for rank in neighbours
        ]
        for listener in self.listeners:
            listener.start()
        atexit.register(self._at_exit)

    # -- the receiving threads ----------------------------------------------------------------------------------------

    def _listen(self, source: int) -> None:
        try:
            buffer = torch.empty(self.world.inline, dtype=torch.uint8)
            view, host = memoryview(buffer.numpy().data), torch.device("cpu")
            while True:
                self.world.channels.recv([buffer], source, self.head).wait()
                op, value, follow = unpack(buffer, view, host)
                if op == CLOSING:
                    with self.changed:
                        self.gone.add(source)
                        self.changed.notify_all()
                    return
                for tensor in follow:
                    self.world.channels.recv([tensor], source, self.body).wait()
                with self.changed:
                    if op.kind is Kind.EVALUATE:  # an unreceived message blocks the sender
                        self.changed.wait_for(lambda: self.closed or self._held() < CAPACITY)
                    self.mailbox[op] = value
                    self.changed.notify_all()
        except BaseException as error:
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def _held(self) -> int:
        return sum(op.kind is Kind.EVALUATE for op in self.mailbox)

    # -- the rank -----------------------------------------------------------------------------------------------------

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.stages, before=self.before, after=self.after)
        if rank is not None:
            sending = self._post(rank, op, tuple(tensor.detach().contiguous().cpu() for tensor in value))
            while len(sending) > _UNDER_WAY:
                for work in sending.popleft()[0]:
                    work.wait()

    def _post(self, rank: int, op: Op, value: Value) -> deque[tuple[list[Any], Any]]:
        """Starts to send; what is under way to that rank."""
        buffer = torch.empty(self.world.inline, dtype=torch.uint8)
        size, follow = pack(op, value, buffer)
        channels, sending = self.world.channels, self.sending[rank]
        works = [channels.send([buffer[:size]], rank, self.head)]
        works += [channels.send([tensor], rank, self.body) for tensor in follow]
        sending.append((works, (buffer, value)))
        return sending

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        with self.changed:
            if timeout != 0:
                self._wait(ops, timeout)
            for op in ops:
                if op in self.mailbox:
                    value = self.mailbox.pop(op)
                    self.changed.notify_all()
                    return op, tuple(tensor.to(self.world.device) for tensor in value)
            if timeout != 0 and self._deserted(ops):
                raise closed_early(self.world.rank, ops)
        self.progress()
        return None

    def _wait(self, ops: Sequence[Op], timeout: float | None) -> None:
        """Until one of `ops` is here or cannot come any more, or `timeout` seconds have passed."""
        come, end = self.mailbox.keys(), math.inf if timeout is None else time.monotonic() + timeout
        while not self.changed.wait_for(
            lambda: self.failure is not None or not come.isdisjoint(ops) or self._deserted(ops),
            min(LOOK, end - time.monotonic()),
        ):
            if time.monotonic() >= end:
                return
            look_around()

    def _deserted(self, ops: Sequence[Op]) -> bool:
        return deserted(ops, self.gone, before=self.before, after=self.after)

    def progress(self) -> None:
        """The threads move messages; what went wrong there is raised here."""
        if self.failure is not None:
            look_around()
            raise PeerEnded(f"a channel of rank {self.world.rank} broke: {self.failure}") from self.failure

    def close(self, timeout: float | None = None) -> None:
        """Every neighbour closes too: its closing message ends the thread that listens to it. After `timeout` seconds
        without one the threads still listen."""
        if self.closed:
            return
        atexit.unregister(self._at_exit)
        self._stop_holding()
        end = None if timeout is None else time.monotonic() + timeout
        for rank in self.sending:
            self._post(rank, CLOSING, ())
        for sending in self.sending.values():
            for works, _ in sending:
                for work in works:
                    work.wait() if end is None else work.wait(_left(end))
        for listener in self.listeners:
            listener.join(None if end is None else _left(end).total_seconds())
        if self.mailbox and self.failure is None:
            unread = ", ".join(map(str, self.mailbox))
            raise RankError(f"rank {self.world.rank} closes with values unreceived: {unread}")

    def _stop_holding(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _at_exit(self) -> None:
        """A rank that ends with an exception waits for no other rank. Threads that no neighbour ends are ended by
        cutting the channels, which the neighbour hears as a closed connection.
        """
        if not raised():
            with suppress(RuntimeError, RankError):  # RuntimeError: a neighbour is gone, or late
                self.close(LEAVE)
        self._stop_holding()
        if any(listener.is_alive() for listener in self.listeners):
            cut(self.world.channels, next(iter(self.sending)))
        for listener in self.listeners:
            listener.join(LEAVE)


def cut(group: Any, other: int) -> None:
    """Ends all that is under way in a group of gloo on this rank: a receive that is late closes the group's
    connections. other: number of another rank in the group."""
    with suppress(RuntimeError):
        group.recv([torch.empty(1, dtype=torch.uint8)], other, _UNUSED).wait(timedelta(milliseconds=1))


def _left(end: float) -> timedelta:
    return timedelta(seconds=max(1e-3, end - time.monotonic()))
