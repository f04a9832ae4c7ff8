"""Point-to-point transport over gloo: a rank receives its messages itself, until a channel needs a thread.

gloo cannot wait for the first of several messages, and its completion test is false until a thread waits. So a rank
that polls, or waits for several neighbours, starts a thread for each of these channels, and waits on the queue that the
threads fill. A rank whose next message can come from one neighbour only, as with 1F1B, waits in gloo without a thread:
handing a message over takes as long as a small message.

A frame is a message (comm.p2p.message) behind the number of frames that its sender has received, which tells the peer
which of its sends it may free. So no send of a training batch waits for the peer, which may wait for another rank. A
tensor that does not fit in a frame is sent before it. Both ends number the sizes of such tensors in the order in which
they first occur, and each size has a tag, with receives that are posted in advance: the next tensors of a size arrive
while the rank computes.

A receiving thread must end before the interpreter does: a thread that wakes up in C++ later aborts the process.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from suite.comm.p2p.channels import ChannelTransport
from suite.comm.p2p.message import ALIGN, CLOSE, evaluation_capacity, neighbours, pack, unpack
from suite.comm.p2p.polling import CHECK_INTERVAL, check_departures
from suite.comm.rendezvous.peer_exit import EXIT_TIMEOUT, exception_raised
from suite.core.errors import PeerEnded, RankError
from suite.core.op import Kind, Op
from suite.core.protocols import Value

if TYPE_CHECKING:
    from suite.comm.collective.process_group import TorchWorld

UNLIMITED = timedelta(days=30)  # every wait of gloo has a limit
_LIMIT = timedelta(minutes=30)  # of a rank's wait for a message, as torch's own
_POSTED = 8  # receives of frames per channel; a frame that finds none waits at its sender
_REPOSTED = 4  # receives that are posted together: each tells the peer, whose thread wakes up once for several
_AHEAD = 2  # receives of each size of tensors that are posted in advance
_SIZES = 8  # sizes with a tag of their own
TAGS = 2 + _SIZES  # of one transport
_ALL = 1 << 20  # evaluation values
_UNUSED_TAG = 0
_HOST, _META = torch.device("cpu"), torch.device("meta")


class _Frame:
    """Memory of one frame. received: number of frames that its sender has received, as its only item"""

    def __init__(self, eager_bytes: int) -> None:
        self.buffer = torch.empty(ALIGN + eager_bytes, dtype=torch.uint8)
        memory = memoryview(self.buffer.numpy().data)
        self.received, self.body, self.view = memory[:8].cast("q"), self.buffer[ALIGN:], memory[ALIGN:]


class _Arrival(NamedTuple):
    """A message, or the error of a broken connection. received: number of frames that the neighbour has received"""

    channel: _Channel
    op: Op
    value: Value = ()
    received: int = 0
    error: BaseException | None = None


class _Channel:
    """Messages from and to one neighbour.

    Attributes:
        sending: Sends that the neighbour may not have received, with the frame and the tensors that they read.
        ahead: Receives of tensors that are posted in advance, by tag.
        listener: The receiving thread; None while the rank receives.
        unread: Counts the evaluation values that the listener may still receive before the rank reads one.
        closed: See channels.Channel.
    """

    def __init__(self, world: TorchWorld, peer: int, tag: int, homes: Sequence[int]) -> None:
        self.group, self.peer, self.eager_bytes = world.channel_group, peer, world.eager_bytes
        self.frame_tag, self.payload_tag, self.limit = tag, tag + 1, world.timeout or _LIMIT
        self.capacity = evaluation_capacity(homes, world.rank, peer)
        self.unread = threading.Semaphore(evaluation_capacity(homes, peer, world.rank))
        self.sending: deque[tuple[list[Any], _Frame, Value]] = deque()
        self.free_frames: list[_Frame] = []
        self.frames_sent = self.frames_received = 0
        self.sent_sizes, self.received_sizes = dict[int, int](), dict[int, int]()
        self.ahead: dict[int, deque[tuple[Any, torch.Tensor]]] = {}
        self.listener: threading.Thread | None = None
        self.closed = False
        self.posted: deque[tuple[Any, _Frame]] = deque()
        self.read_frames = [_Frame(self.eager_bytes) for _ in range(_POSTED)]
        self._post()

    def _post(self) -> None:
        while self.read_frames:
            frame = self.read_frames.pop()
            self.posted.append((self.group.recv([frame.buffer], self.peer, self.frame_tag), frame))

    def receive(self, limit: timedelta) -> _Arrival:
        """Wait for the next message. Raises RuntimeError for a broken connection, and after the limit."""
        work, frame = self.posted.popleft()
        work.wait(limit)
        op, value, payload = unpack(frame.body, frame.view, _HOST, later=_META)
        received = frame.received[0]
        self.read_frames.append(frame)
        if len(self.read_frames) == _REPOSTED:
            self._post()
        if payload:
            value = tuple([self._receive_tensor(tensor, limit) for tensor in value])
        self.frames_received += 1
        return _Arrival(self, op, value, received)

    def _receive_tensor(self, described: torch.Tensor, limit: timedelta) -> torch.Tensor:
        """The next tensor with the dtype and the shape of `described`."""
        if not described.nbytes:
            return torch.empty_like(described, device=_HOST)
        tag = _tag(self.received_sizes, described.nbytes)
        ahead = self.ahead.setdefault(tag, deque())
        while len(ahead) <= (_AHEAD if tag else 0):
            memory = torch.empty(described.nbytes, dtype=torch.uint8)
            ahead.append((self.group.recv([memory], self.peer, self.payload_tag + tag), memory))
        work, memory = ahead.popleft()
        work.wait(limit)
        return memory.view(described.dtype).view(described.shape)

    def read_evaluation(self) -> None:
        """Count an evaluation value that this rank has read."""
        self.unread.release()

    def listen(self, arrivals: queue.SimpleQueue[_Arrival]) -> None:
        """Let a thread receive from now on."""
        if self.listener is None and not self.closed:
            name = f"channel from rank {self.peer}"
            self.listener = threading.Thread(target=self._listen, args=(arrivals,), name=name, daemon=True)
            self.listener.start()

    def _listen(self, arrivals: queue.SimpleQueue[_Arrival]) -> None:
        op = None
        try:
            while op != CLOSE:
                arrival = self.receive(UNLIMITED)
                op = arrival.op
                if op.kind is Kind.EVALUATE:  # receives that are not posted block the sender
                    self.unread.acquire()
                arrivals.put(arrival)
        except BaseException as error:
            arrivals.put(_Arrival(self, CLOSE, error=error))

    def send(self, op: Op, value: Value) -> None:
        """Start to send. Waits only where the neighbour holds the most evaluation values that it may."""
        frame = self.free_frames.pop() if self.free_frames else _Frame(self.eager_bytes)
        size, payload = pack(op, value, frame.body)
        frame.received[0] = self.frames_received
        works = [
            self.group.send([tensor], self.peer, self.payload_tag + _tag(self.sent_sizes, tensor.nbytes))
            for tensor in payload
        ]
        works.append(self.group.send([frame.buffer[: ALIGN + size]], self.peer, self.frame_tag))
        self.sending.append((works, frame, payload))
        self.frames_sent += 1
        if op.kind is Kind.EVALUATE:
            self.finish(self.capacity)

    def finish(self, left: int) -> None:
        """Wait for the oldest sends, until `left` are in flight."""
        while len(self.sending) > left:
            works, frame, _ = self.sending.popleft()
            for work in works:
                work.wait(self.limit)
            self.free_frames.append(frame)


def _tag(sizes: dict[int, int], size: int) -> int:
    """Number of a tensor's size in bytes: from 1 for the first sizes, and 0 for all others."""
    if len(sizes) < _SIZES:
        sizes.setdefault(size, len(sizes) + 1)
    return sizes.get(size, 0)


class GlooTransport(ChannelTransport[_Channel]):
    """Channels over gloo, on host memory. Values on a device are copied to and from it."""

    threaded = True

    def __init__(self, world: TorchWorld, homes: Sequence[int]) -> None:
        super().__init__(world, homes)
        tag = world.first_tag()
        self.channels = {peer: _Channel(world, peer, tag, homes) for peer in neighbours(homes, world.rank)}
        self.arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self.closed = False

    def start(self, channel: _Channel, op: Op, value: Value) -> None:
        try:
            channel.send(op, value)
        except RuntimeError as error:
            self._fail(error)

    def receive(self, ops: Sequence[Op], timeout: float | None) -> None:
        received, senders = self.mailbox.keys(), {self.homes[op.stage] for op in ops}
        channels = [channel for peer, channel in self.channels.items() if peer in senders]
        if timeout is None and len(channels) == 1 and channels[0].listener is None:
            try:
                while received.isdisjoint(ops) and not channels[0].closed:
                    self._store(channels[0].receive(channels[0].limit))
            except RuntimeError as error:
                self._fail(error)
            return
        for channel in channels:
            channel.listen(self.arrivals)
        self._wait_until(lambda: not received.isdisjoint(ops) or self.senders_closed(ops), timeout)

    def _wait_until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Store what the listeners receive, until `done`. Returns False where `timeout` seconds pass first."""
        start, limit = time.monotonic(), (self.world.timeout or _LIMIT).total_seconds()
        while not done():
            waited = time.monotonic() - start
            if timeout is not None and waited >= timeout:
                return False
            if waited > limit:
                self._fail(TimeoutError(f"no message in {limit:g} s"))
            try:
                left = CHECK_INTERVAL if timeout is None else timeout - waited
                self._store(self.arrivals.get(timeout=min(CHECK_INTERVAL, left)))
            except queue.Empty:
                check_departures()
        return True

    def _store(self, arrival: _Arrival) -> None:
        channel = arrival.channel
        if arrival.error is not None:
            self._fail(arrival.error)
        channel.finish(channel.frames_sent - arrival.received)
        if arrival.op == CLOSE:
            channel.closed = True
        else:
            self.mailbox[arrival.op] = arrival.value

    def progress(self) -> None:
        """Store what the listeners have received. Raises PeerEnded for a broken channel."""
        if self.failure is not None:
            self._fail(self.failure)
        while not self.arrivals.empty():
            self._store(self.arrivals.get())

    def _fail(self, error: BaseException) -> NoReturn:
        self.failure = error
        check_departures()
        raise PeerEnded(f"a channel of rank {self.world.rank} broke: {error}") from error

    def close(self, timeout: float | None = None) -> None:
        """Send a closing message to every neighbour, and wait for theirs, which end the listeners.

        Raises RankError where a neighbour is silent for `timeout` seconds. Its listener still runs.
        """
        if self.closed:
            return
        atexit.unregister(self._at_exit)
        self.closed = True
        channels = self.channels.values()
        try:
            for channel in channels:
                channel.send(CLOSE, ())
                channel.unread.release(_ALL)
                channel.listen(self.arrivals)
            if not self._wait_until(lambda: all(channel.closed for channel in channels), timeout):
                raise RankError(f"a neighbour of rank {self.world.rank} has not closed its channel")
            for channel in channels:
                channel.finish(0)
        except RuntimeError as error:
            self._fail(error)
        if self.mailbox:
            unread = ", ".join(map(str, self.mailbox))
            raise RankError(f"rank {self.world.rank} closes with values unreceived: {unread}")

    def _at_exit(self) -> None:
        """Close, or abort after an exception: such a rank waits for no peer.

        Aborting the group ends the threads that no neighbour ends. The neighbours see a closed connection.
        """
        if not exception_raised():
            with suppress(RankError):  # a neighbour has ended, or is late
                self.close(EXIT_TIMEOUT)
        for channel in self.channels.values():
            channel.unread.release(_ALL)
            if channel.listener is not None and channel.listener.is_alive():
                abort_group(self.world.channel_group, channel.peer)
                channel.listener.join(EXIT_TIMEOUT)


def abort_group(group: Any, peer_rank: int) -> None:
    """End all operations of a gloo group on this rank: a receive that times out closes the group's connections.

    peer_rank: number of any other rank in the group
    """
    with suppress(RuntimeError):
        group.recv([torch.empty(1, dtype=torch.uint8)], peer_rank, _UNUSED_TAG).wait(timedelta(milliseconds=1))
