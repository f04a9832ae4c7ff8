"""Point-to-point transport over gloo: one receiving thread per neighbour, and one mailbox per rank.

gloo cannot wait for the first of several messages, and its completion test is false until a thread waits. So one
thread waits on each channel, and the rank waits on the mailbox. The receiver always has a receive posted, so that a
send completes soon and needs no progress calls. Messages have MPI's format: a header, with the payload inside or
after it. A receiving thread must end before the interpreter does: a thread that wakes up in C++ later aborts the
process.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch

from suite.comm.p2p.message import CLOSE, evaluation_capacity, neighbours, pack, receiver, unpack
from suite.comm.p2p.polling import CHECK_INTERVAL, check_departures
from suite.comm.rendezvous.process_exit import EXIT_TIMEOUT, closed_channel_error, exception_raised, senders_closed
from suite.core.errors import PeerEnded, RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value

_MAX_SENDING = 2  # values in flight per channel before the rank waits for the oldest one
_UNUSED_TAG = 0


class TaggedWorld(Protocol):
    """World whose ranks share one gloo process group.

    Attributes:
        order: "any", or "static".
        eager_bytes: Size of the first part of a message, in bytes.
        channel_group: The process group.
    """

    rank: int
    device: Any
    order: str
    eager_bytes: int
    channel_group: Any

    def tags(self) -> tuple[int, int]:
        """Tags for the headers and the payloads of one more transport."""


class GlooTransport(Transport):
    """Channels to the ranks of neighbouring stages, on host memory. Values on a device are copied to and from it."""

    def __init__(self, world: TaggedWorld, homes: Sequence[int]) -> None:
        self.any_order = world.order == "any"
        self.world, self.homes = world, homes
        self.header_tag, self.payload_tag = world.tags()
        peers = neighbours(homes, world.rank)
        self.sending: dict[int, deque[tuple[list[Any], Any]]] = {rank: deque() for rank in peers}
        self.mailbox: dict[Op, Value] = {}
        self.changed = threading.Condition()
        self.failure: BaseException | None = None
        self.closed_neighbours: set[int] = set()
        self.closed = False
        self.listeners = [
            threading.Thread(target=self._listen, args=(rank,), name=f"channel from rank {rank}", daemon=True)
            for rank in peers
        ]
        for listener in self.listeners:
            listener.start()
        atexit.register(self._at_exit)

    # -- receiving threads --------------------------------------------------------------------------------------------

    def _listen(self, source: int) -> None:
        try:
            capacity = evaluation_capacity(self.homes, source, self.world.rank)
            buffer = torch.empty(self.world.eager_bytes, dtype=torch.uint8)
            view, host = memoryview(buffer.numpy().data), torch.device("cpu")
            while True:
                self.world.channel_group.recv([buffer], source, self.header_tag).wait()
                op, value, payload = unpack(buffer, view, host)
                if op == CLOSE:
                    with self.changed:
                        self.closed_neighbours.add(source)
                        self.changed.notify_all()
                    return
                for tensor in payload:
                    self.world.channel_group.recv([tensor], source, self.payload_tag).wait()
                with self.changed:
                    if op.kind is Kind.EVALUATE:  # an unreceived message blocks the sender
                        self.changed.wait_for(lambda: self.closed or self._waiting_evaluations(source) < capacity)
                    self.mailbox[op] = value
                    self.changed.notify_all()
        except BaseException as error:
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    def _waiting_evaluations(self, source: int) -> int:
        """Unread evaluation values of rank `source`."""
        return sum(op.kind is Kind.EVALUATE and self.homes[op.stage] == source for op in self.mailbox)

    # -- rank ---------------------------------------------------------------------------------------------------------

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        if rank == self.world.rank:
            with self.changed:
                self.mailbox[op] = tuple(tensor.detach() for tensor in value)
        elif rank is not None:
            sending = self._post(rank, op, tuple(tensor.detach().contiguous().cpu() for tensor in value))
            while len(sending) > _MAX_SENDING:
                for work in sending.popleft()[0]:
                    work.wait()

    def _post(self, rank: int, op: Op, value: Value) -> deque[tuple[list[Any], Any]]:
        """Start to send a value; returns the sends in flight to `rank`."""
        buffer = torch.empty(self.world.eager_bytes, dtype=torch.uint8)
        size, payload = pack(op, value, buffer)
        group, sending = self.world.channel_group, self.sending[rank]
        works = [group.send([buffer[:size]], rank, self.header_tag)]
        works += [group.send([tensor], rank, self.payload_tag) for tensor in payload]
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
            if timeout != 0 and self._senders_closed(ops):
                raise closed_channel_error(self.world.rank, ops)
        self.progress()
        return None

    def _wait(self, ops: Sequence[Op], timeout: float | None) -> None:
        """Wait until one of `ops` is received, none can be received any more, or `timeout` seconds have passed."""
        received, end = self.mailbox.keys(), math.inf if timeout is None else time.monotonic() + timeout
        while not self.changed.wait_for(
            lambda: self.failure is not None or not received.isdisjoint(ops) or self._senders_closed(ops),
            min(CHECK_INTERVAL, end - time.monotonic()),
        ):
            if time.monotonic() >= end:
                return
            check_departures()

    def _senders_closed(self, ops: Sequence[Op]) -> bool:
        return senders_closed(ops, self.closed_neighbours, self.homes)

    def progress(self) -> None:
        """Raise PeerEnded where a receiving thread has failed. The threads move the messages."""
        if self.failure is not None:
            check_departures()
            raise PeerEnded(f"a channel of rank {self.world.rank} broke: {self.failure}") from self.failure

    def close(self, timeout: float | None = None) -> None:
        """Send a closing message to every neighbour, and wait for theirs, which end the receiving threads.

        After `timeout` seconds the threads of silent neighbours still run.
        """
        if self.closed:
            return
        atexit.unregister(self._at_exit)
        self._release_listeners()
        end = None if timeout is None else time.monotonic() + timeout
        for rank in self.sending:
            self._post(rank, CLOSE, ())
        for sending in self.sending.values():
            for works, _ in sending:
                for work in works:
                    work.wait() if end is None else work.wait(_remaining(end))
        for listener in self.listeners:
            listener.join(None if end is None else _remaining(end).total_seconds())
        if self.mailbox and self.failure is None:
            unread = ", ".join(map(str, self.mailbox))
            raise RankError(f"rank {self.world.rank} closes with values unreceived: {unread}")

    def _release_listeners(self) -> None:
        """Let the receiving threads accept evaluation values without limit."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _at_exit(self) -> None:
        """Close, or abort after an exception: such a rank waits for no peer.

        Aborting the group ends the threads that no neighbour ends. The neighbours see a closed connection.
        """
        if not exception_raised():
            with suppress(RuntimeError, RankError):  # RuntimeError: a neighbour has ended, or is late
                self.close(EXIT_TIMEOUT)
        self._release_listeners()
        if any(listener.is_alive() for listener in self.listeners):
            abort_group(self.world.channel_group, next(iter(self.sending)))
        for listener in self.listeners:
            listener.join(EXIT_TIMEOUT)


def abort_group(group: Any, peer_rank: int) -> None:
    """End all operations of a gloo group on this rank: a receive that times out closes the group's connections.

    peer_rank: number of any other rank in the group
    """
    with suppress(RuntimeError):
        group.recv([torch.empty(1, dtype=torch.uint8)], peer_rank, _UNUSED_TAG).wait(timedelta(milliseconds=1))


def _remaining(end: float) -> timedelta:
    return timedelta(seconds=max(1e-3, end - time.monotonic()))
