"""Channel between two ranks of a gloo group that needs no receiving thread.

gloo's completion test is false until a thread waits, and a wait that times out breaks the group. So a rank that may not
wait does not ask gloo whether a message has arrived: it reads the memory of the receive. A message is a frame. Its
first word is the position of its last word, its second word a random mark, and its last word the same mark, which
arrives last. A rank that finds the mark at the end waits for gloo, which has all or nearly all of the frame. The result
of that wait is what counts, and the mark only keeps the wait short.

A tensor that does not fit in a frame is a message of its own, sent before its frame. Both ranks number the sizes of
such tensors in the order in which they first occur, and each size has a tag. After the first tensor of a size, receives
for the next ones are posted in advance, so that they arrive while the rank computes.

Several receives of frames are posted, the slots. A frame that finds none stays with its sender until the peer polls.
Every frame carries the number of frames that its sender has received, which tells the peer what it may free. A rank
that only receives sends frames without a value, acknowledgements. No send waits for the peer to poll: a peer that waits
for another rank reads no frames, so only a few acknowledgements of values may be unread.
"""

from __future__ import annotations

import os
from collections import deque
from math import prod
from typing import Any, NamedTuple

import torch

from suite.comm.p2p.message import ALIGN, decode, pack, unpack
from suite.core.op import Kind, Op
from suite.core.protocols import Value

_SLOTS = 12  # posted receives
_REPOSTED = 4  # receives that are posted together: each tells the peer, whose thread wakes up once for several
_ACKNOWLEDGED = 4  # values after which a rank that sends none acknowledges them
_MAX_UNREAD = 8  # acknowledgements of values that the peer has not read
_WORD = 8  # bytes
_SIZES = 8  # sizes of tensors with a tag of their own
_AHEAD = 2  # receives of each such size that are posted in advance
PAYLOAD_TAGS = 1 + _SIZES  # of one channel
_LAST, _MARK, _RECEIVED, _TAKEN, _CONTENT = range(5)  # words of a frame before its message
_ACKNOWLEDGEMENT, _INLINE, _LARGE, _END = range(4)  # contents of a frame; tensors of a large value precede it
_HOST = torch.device("cpu")


class _Frame:
    """Memory of one frame.

    Attributes:
        body, view: The message in the frame (comm.p2p.message), as a tensor and as memory.
        words: The frame as numbers of 64 bits.
    """

    __slots__ = ("body", "buffer", "view", "words")

    def __init__(self, eager_bytes: int) -> None:
        room = -(-eager_bytes // _WORD) * _WORD
        self.buffer = torch.empty(ALIGN + room + _WORD, dtype=torch.uint8)
        self.body = self.buffer[ALIGN : ALIGN + eager_bytes]
        self.view = memoryview(self.body.numpy().data)
        self.words = memoryview(self.buffer.numpy().data).cast("Q")


class _Sent(NamedTuple):
    """A frame in flight, with the tensors that did not fit. Both stay alive until the peer has read the frame."""

    works: list[Any]
    frame: _Frame
    value: Value
    content: int


class _Sizes:
    """Tags of tensors by their size in bytes: one for each of the first sizes, and one for all others."""

    def __init__(self, first_tag: int) -> None:
        self.first_tag = first_tag
        self.tags: dict[int, int] = {}

    def tag(self, size: int) -> int:
        if size not in self.tags and len(self.tags) < _SIZES:
            self.tags[size] = self.first_tag + 1 + len(self.tags)
        return self.tags.get(size, self.first_tag)


class GlooChannel:
    """Frames to and from one rank.

    Args:
        group: The process group of the channels.
        peer: The other rank.
        header_tag: Tag of frames.
        payload_tag: First of PAYLOAD_TAGS tags of tensors that do not fit in a frame.
        eager_bytes: Size of the message in a frame.
        capacity: Evaluation values that the peer may hold unread.
        peer_capacity: Evaluation values that this rank may hold unread.

    Attributes:
        frames_sent, frames_received: Frames that this rank has sent to the peer and received from it.
        unacknowledged: Values that this rank has received since its last frame.
        sending: Frames that the peer has not read.
        unread_acknowledgements: Acknowledgements that the peer has not read.
        closed: Whether the peer has closed. Its last frame says so.
    """

    def __init__(
        self,
        group: Any,
        peer: int,
        *,
        header_tag: int,
        payload_tag: int,
        eager_bytes: int,
        capacity: int,
        peer_capacity: int,
    ) -> None:
        self.group, self.peer, self.eager_bytes = group, peer, eager_bytes
        self.header_tag = header_tag
        self.sent_sizes, self.received_sizes = _Sizes(payload_tag), _Sizes(payload_tag)
        self.ahead: dict[int, deque[tuple[Any, torch.Tensor]]] = {}  # receives that are posted in advance, by size
        self.capacity, self.acknowledged_evaluations = capacity, max(1, peer_capacity // 2)
        self.frames_sent = self.frames_received = self.unacknowledged = self.unread_acknowledgements = 0
        self.evaluations_sent = self.evaluations_read = 0  # by the peer
        self.evaluations_taken = self.taken_acknowledged = 0  # from the peer
        self.closed = False
        self.mark = int.from_bytes(os.urandom(8), "little")
        self.sending: deque[_Sent] = deque()
        self.free_frames: list[_Frame] = []
        self.incoming: deque[tuple[Op, Value, list[Any]]] = deque()  # values whose tensors are in flight
        self.slots: deque[tuple[Any, _Frame]] = deque()
        self.read_frames = [_Frame(eager_bytes) for _ in range(_SLOTS)]
        self._post_slots()

    # -- receive -----------------------------------------------------------------------------------------------------

    def _post_slots(self) -> None:
        while self.read_frames:
            frame = self.read_frames.pop()
            frame.words[_LAST] = frame.words[_MARK] = 0  # neither the position nor the mark of an older frame
            self.slots.append((self.group.recv([frame.buffer], self.peer, self.header_tag), frame))

    def wait(self, mailbox: dict[Op, Value]) -> None:
        """Wait for a frame, and move values into the mailbox. Raises RuntimeError for a broken connection."""
        if not self.incoming:
            self._receive(mailbox)
        self.poll(mailbox)

    def poll(self, mailbox: dict[Op, Value]) -> None:
        """Move values that have arrived into the mailbox. Raises RuntimeError for a broken connection."""
        self._finish_incoming(mailbox)
        words = self.slots[0][1].words
        while (mark := words[_MARK]) and words[words[_LAST]] == mark:
            self._receive(mailbox)
            words = self.slots[0][1].words
        if self.unacknowledged > _ACKNOWLEDGED and self.unread_acknowledgements < _MAX_UNREAD and not self.closed:
            self._acknowledge()

    def _receive(self, mailbox: dict[Op, Value]) -> None:
        """Wait for the next frame, and read it."""
        work, frame = self.slots[0]
        work.wait()  # at most once: a second wait would be for another message
        self.slots.popleft()
        self._read(frame, mailbox)
        self.read_frames.append(frame)
        if len(self.read_frames) == _REPOSTED:
            self._post_slots()

    def _read(self, frame: _Frame, mailbox: dict[Op, Value]) -> None:
        words = frame.words
        self.frames_received += 1
        self.evaluations_read = words[_TAKEN]
        while len(self.sending) > self.frames_sent - words[_RECEIVED]:
            self._release(self.sending.popleft())
        content = words[_CONTENT]
        if content in (_ACKNOWLEDGEMENT, _END):
            self.closed = content == _END
            return
        self.unacknowledged += 1
        if content == _INLINE:
            op, value, _ = unpack(frame.body, frame.view, _HOST)
            mailbox[op] = value
        else:
            self._read_large(frame, mailbox)

    def _read_large(self, frame: _Frame, mailbox: dict[Op, Value]) -> None:
        """Read a frame whose tensors the peer sent before it."""
        op, _, described, _ = decode(frame.view)
        works, value, landed = [], [], True
        for dtype, shape in described:
            size = prod(shape) * dtype.itemsize
            if not size:
                value.append(torch.empty(shape, dtype=dtype))
                continue
            landed = landed and bool(self.ahead.get(size))  # its receive was posted in advance
            work, memory = self._receive_tensor(size)
            works.append(work)
            value.append(memory.view(dtype).view(shape))
        self.incoming.append((op, tuple(value), works))
        if landed:
            self._finish_incoming(mailbox)

    def _finish_incoming(self, mailbox: dict[Op, Value]) -> None:
        """Wait for the tensors of the frames that are read."""
        while self.incoming:
            op, value, works = self.incoming[0]
            for work in works:
                work.wait()
            mailbox[op] = value
            self.incoming.popleft()

    def _receive_tensor(self, size: int) -> tuple[Any, torch.Tensor]:
        """The receive of the next tensor of `size` bytes, and its memory."""
        tag = self.received_sizes.tag(size)
        if size not in self.received_sizes.tags:
            return self._post(size, tag)
        ahead = self.ahead.setdefault(size, deque())
        while len(ahead) <= _AHEAD:
            ahead.append(self._post(size, tag))
        return ahead.popleft()

    def _post(self, size: int, tag: int) -> tuple[Any, torch.Tensor]:
        memory = torch.empty(size, dtype=torch.uint8)
        return self.group.recv([memory], self.peer, tag), memory

    def _release(self, sent: _Sent) -> None:
        for work in sent.works:
            work.wait()  # the peer has read the frame, and has posted the receives of its tensors
        self.free_frames.append(sent.frame)
        self.unread_acknowledgements -= sent.content == _ACKNOWLEDGEMENT

    def evaluation_taken(self) -> None:
        """Count an evaluation value that the rank has read."""
        self.evaluations_taken += 1
        if self.evaluations_taken - self.taken_acknowledged >= self.acknowledged_evaluations and not self.closed:
            self._acknowledge()

    # -- send --------------------------------------------------------------------------------------------------------

    def may_evaluate(self) -> bool:
        """Whether the peer may hold one more unread evaluation value."""
        return self.evaluations_sent - self.evaluations_read < self.capacity

    def send(self, op: Op, value: Value) -> None:
        """Start to send contiguous tensors on the host."""
        frame = self._frame()
        size, payload = pack(op, value, frame.body)
        payload = tuple([tensor.detach() for tensor in payload])  # keeps no graph alive
        works = [self.group.send([tensor], self.peer, self.sent_sizes.tag(tensor.nbytes)) for tensor in payload]
        self._send_frame(frame, size, _LARGE if payload else _INLINE, works, payload)
        self.evaluations_sent += op.kind is Kind.EVALUATE

    def send_end(self) -> None:
        """Start to send the last frame."""
        self._send_frame(self._frame(), 0, _END, [])

    def _acknowledge(self) -> None:
        """Send the numbers of received frames and of read evaluation values."""
        self._send_frame(self._frame(), 0, _ACKNOWLEDGEMENT, [])
        self.unread_acknowledgements += 1

    def _frame(self) -> _Frame:
        return self.free_frames.pop() if self.free_frames else _Frame(self.eager_bytes)

    def _send_frame(self, frame: _Frame, size: int, content: int, works: list[Any], payload: Value = ()) -> None:
        """Start to send a frame with a message of `size` bytes. works: sends of the payload, which stay with it."""
        words = frame.words
        last = (ALIGN + size + _WORD - 1) // _WORD
        self.mark = mark = (self.mark + 0x9E3779B97F4A7C15) % (1 << 64)
        words[_LAST], words[_MARK], words[_CONTENT] = last, mark, content
        words[_RECEIVED], words[_TAKEN] = self.frames_received, self.evaluations_taken
        words[last] = mark
        self.unacknowledged, self.taken_acknowledged = 0, self.evaluations_taken
        works.append(self.group.send([frame.buffer[: (last + 1) * _WORD]], self.peer, self.header_tag))
        self.sending.append(_Sent(works, frame, payload, content))
        self.frames_sent += 1

    def unfinished(self) -> list[Any]:
        """Sends that gloo may not have finished."""
        return [work for sent in self.sending for work in sent.works]
