"""Point-to-point transport over gloo: one channel per neighbour, which the rank polls.

A value travels in a frame, or its tensors precede the frame (comm.p2p.gloo_channel). The rank moves messages whenever
it sends, waits or calls `progress`, as over MPI. A rank whose message can come from one neighbour only waits in gloo.
For several neighbours it polls, because gloo cannot wait for the first of several messages. No thread receives
messages: handing a message from a thread to the rank costs more than a small op.

One thread per neighbour sleeps until the connection ends. It must end before the interpreter does: a thread that wakes
up in C++ later aborts the process.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch

from suite import accelerator
from suite.comm.p2p.gloo_channel import GlooChannel
from suite.comm.p2p.message import evaluation_capacity, neighbours, receiver
from suite.comm.p2p.polling import check_departures, wait_until
from suite.comm.rendezvous.process_exit import EXIT_TIMEOUT, closed_channel_error, exception_raised, senders_closed
from suite.core.errors import PeerEnded, RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Transport, Value

_UNACKNOWLEDGED = 4  # values in flight to a rank from which on a send reads acknowledgements
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

    def tags(self) -> tuple[int, int, int]:
        """Tags of frames and closing messages, and the first of PAYLOAD_TAGS tags, of one more transport."""


class GlooTransport(Transport):
    """Channels to the ranks of neighbouring stages, on host memory. Values on a device are copied to and from it."""

    threaded = True

    def __init__(self, world: TaggedWorld, homes: Sequence[int]) -> None:
        self.any_order = world.order == "any"
        self.world, self.homes = world, homes
        self.on_host = accelerator.on_host(world.device)
        header_tag, self.closing_tag, payload_tag = world.tags()
        self.channels = {
            peer: GlooChannel(
                world.channel_group,
                peer,
                header_tag=header_tag,
                payload_tag=payload_tag,
                eager_bytes=world.eager_bytes,
                capacity=evaluation_capacity(homes, world.rank, peer),
                peer_capacity=evaluation_capacity(homes, peer, world.rank),
            )
            for peer in neighbours(homes, world.rank)
        }
        self.mailbox: dict[Op, Value] = {}
        self.failure: BaseException | None = None
        self.closed = False
        self.listeners = [
            threading.Thread(target=self._listen, args=(channel,), name=f"end of rank {peer}", daemon=True)
            for peer, channel in self.channels.items()
        ]
        for listener in self.listeners:
            listener.start()
        atexit.register(self._at_exit)

    def _listen(self, channel: GlooChannel) -> None:
        """Wait until a neighbour closes its channel or ends."""
        try:
            closing = torch.empty(1, dtype=torch.uint8)
            self.world.channel_group.recv([closing], channel.peer, self.closing_tag).wait()
        except BaseException as error:
            self.failure = error

    def send(self, op: Op, value: Value) -> None:
        rank = receiver(op, self.homes)
        if rank is None:
            return
        if rank == self.world.rank:
            self.mailbox[op] = tuple([tensor.detach() for tensor in value])
            return
        channel = self.channels[rank]
        if not self.on_host or not all(tensor.is_contiguous() for tensor in value):
            value = tuple([tensor.detach().contiguous().cpu() for tensor in value])
        if len(channel.sending) > _UNACKNOWLEDGED:
            self._move()
        if op.kind is Kind.EVALUATE and not channel.may_evaluate():
            wait_until(channel.may_evaluate, self.progress, yields=False)
        channel.send(op, value)

    def recv_any(self, ops: Sequence[Op], timeout: float | None) -> tuple[Op, Value] | None:
        mailbox = self.mailbox
        self._move()
        if timeout != 0 and mailbox.keys().isdisjoint(ops):
            self._wait(ops, timeout)
        for op in ops:
            if op in mailbox:
                return op, self._take(op)
        if timeout != 0 and self._senders_closed(ops):
            raise closed_channel_error(self.world.rank, ops)
        self.progress()
        return None

    def _wait(self, ops: Sequence[Op], timeout: float | None) -> None:
        """Wait until one of `ops` is received, none can be received any more, or `timeout` seconds have passed."""
        received = self.mailbox.keys()
        channel = self._only_sender(ops) if timeout is None else None
        if channel is None:
            wait_until(
                lambda: not received.isdisjoint(ops) or self._senders_closed(ops), self.progress, timeout, yields=False
            )
            return
        while received.isdisjoint(ops) and not channel.closed:
            try:
                if self.failure is None:
                    channel.wait(self.mailbox)
            except RuntimeError as error:
                self.failure = self.failure or error
            self.progress()

    def _only_sender(self, ops: Sequence[Op]) -> GlooChannel | None:
        """The channel of the only rank that sends any of `ops`; None for several ranks, and for this rank."""
        first = self.homes[ops[0].stage]
        if any(self.homes[op.stage] != first for op in ops):
            return None
        return self.channels.get(first)

    def _take(self, op: Op) -> Value:
        value = self.mailbox.pop(op)
        home = self.homes[op.stage]
        if op.kind is Kind.EVALUATE and home != self.world.rank:
            self.channels[home].evaluation_taken()
        return value if self.on_host else tuple([tensor.to(self.world.device) for tensor in value])

    def _senders_closed(self, ops: Sequence[Op]) -> bool:
        closed = [peer for peer, channel in self.channels.items() if channel.closed]
        return senders_closed(ops, closed, self.homes)

    def _move(self) -> None:
        """Move messages that have arrived into the mailbox, unless a channel is broken."""
        if self.failure is not None:
            return
        try:
            for channel in self.channels.values():
                channel.poll(self.mailbox)
        except RuntimeError as error:
            self.failure = self.failure or error

    def progress(self) -> None:
        """Move messages. Raises PeerEnded for a broken channel."""
        self._move()
        if self.failure is not None:
            check_departures()
            raise PeerEnded(f"a channel of rank {self.world.rank} broke: {self.failure}") from self.failure

    def close(self, timeout: float | None = None) -> None:
        """Send a closing message to every neighbour, and wait for theirs, which end the listening threads.

        After `timeout` seconds the threads of silent neighbours still run.
        """
        if self.closed:
            return
        atexit.unregister(self._at_exit)
        self.closed = True
        end = None if timeout is None else time.monotonic() + timeout
        closing = []
        for peer, channel in self.channels.items():
            channel.send_end()
            closing_message = torch.zeros(1, dtype=torch.uint8)
            closing.append((self.world.channel_group.send([closing_message], peer, self.closing_tag), closing_message))
        wait_until(lambda: all(channel.closed for channel in self.channels.values()), self.progress, timeout)
        for work in [work for work, _ in closing] + [w for c in self.channels.values() for w in c.unfinished()]:
            work.wait() if end is None else work.wait(_remaining(end))
        for listener in self.listeners:
            listener.join(None if end is None else _remaining(end).total_seconds())
        if self.mailbox and self.failure is None:
            unread = ", ".join(map(str, self.mailbox))
            raise RankError(f"rank {self.world.rank} closes with values unreceived: {unread}")

    def _at_exit(self) -> None:
        """Close, or abort after an exception: such a rank waits for no peer.

        Aborting the group ends the threads that no neighbour ends. The neighbours see a closed connection.
        """
        if not exception_raised():
            with suppress(RuntimeError, RankError):  # RuntimeError: a neighbour has ended, or is late
                self.close(EXIT_TIMEOUT)
        if any(listener.is_alive() for listener in self.listeners):
            abort_group(self.world.channel_group, next(iter(self.channels)))
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
