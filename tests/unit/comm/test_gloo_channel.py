"""Frames of a gloo channel over a wire that delivers bytes when a test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from suite.comm.p2p import gloo_channel
from suite.comm.p2p.gloo_channel import PAYLOAD_TAGS, GlooChannel
from suite.core.op import Kind, Op

CAPACITY = 4
FIRST = Op(0, Kind.FORWARD, 0)


class Work:
    """Send or receive. A wait for bytes that have not arrived fails the test."""

    def __init__(self) -> None:
        self.done = False

    def wait(self) -> None:
        assert self.done, "the rank waits for a message that has not arrived"


class Wire:
    """One direction between two ranks; keeps the messages of each tag in order."""

    def __init__(self) -> None:
        self.sent: dict[int, deque[tuple[torch.Tensor, Work]]] = {}
        self.posted: dict[int, deque[tuple[torch.Tensor, Work]]] = {}

    def deliver(self, tag: int, most: int | None = None) -> bool:
        """Write the next message of a tag, or its first bytes, to the next receive. False where there is no pair."""
        sent, posted = self.sent.get(tag), self.posted.get(tag)
        if not sent or not posted:
            return False
        (message, sending), (buffer, receiving) = sent[0], posted[0]
        source, target = message.view(torch.uint8).reshape(-1), buffer.view(torch.uint8).reshape(-1)
        target[: len(source)][:most] = source[:most]
        if most is None:
            sent.popleft()
            posted.popleft()
            sending.done = receiving.done = True
        return True


class Group:
    """Process group of one end."""

    def __init__(self, outbound: Wire, inbound: Wire) -> None:
        self.outbound, self.inbound = outbound, inbound

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        work = Work()
        self.outbound.sent.setdefault(tag, deque()).append((tensors[0], work))
        return work

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        work = Work()
        self.inbound.posted.setdefault(tag, deque()).append((tensors[0], work))
        return work


class Pair:
    """Both ends of a channel."""

    def __init__(self, eager_bytes: int = 256) -> None:
        self.there, self.back = Wire(), Wire()
        tags: dict[str, Any] = {"header_tag": 1, "payload_tag": 2, "eager_bytes": eager_bytes}
        self.left = GlooChannel(Group(self.there, self.back), 1, capacity=CAPACITY, peer_capacity=CAPACITY, **tags)
        self.right = GlooChannel(Group(self.back, self.there), 0, capacity=CAPACITY, peer_capacity=CAPACITY, **tags)

    def deliver_all(self) -> None:
        for wire in (self.there, self.back):
            for tag in range(1, 2 + PAYLOAD_TAGS):
                while wire.deliver(tag):
                    pass


def received(channel: GlooChannel) -> dict[Op, Any]:
    mailbox: dict[Op, Any] = {}
    channel.poll(mailbox)
    return mailbox


def test_value_arrives_in_its_frame() -> None:
    pair, value = Pair(), (torch.arange(5.0), torch.tensor([[1, 2]]))
    pair.left.send(FIRST, value)
    assert received(pair.right) == {}
    pair.deliver_all()
    (arrived,) = received(pair.right).values()
    assert [tensor.tolist() for tensor in arrived] == [tensor.tolist() for tensor in value]


def test_rank_does_not_wait_for_a_part_of_a_frame() -> None:
    """The frame of a small value has 14 words of 8 bytes; the last word is the mark."""
    value = (torch.tensor([5.0]),)
    for most in range(0, 112, 4):
        pair = Pair()
        pair.left.send(FIRST, value)
        pair.there.deliver(1, most)
        assert received(pair.right) == {}, most
        pair.deliver_all()
        assert received(pair.right) == {FIRST: value}, most


def test_frame_in_used_memory_is_not_taken_early() -> None:
    """A receive writes over an older frame of the same size; its mark must not count."""
    pair = Pair()
    for index in range(3 * gloo_channel._SLOTS):
        op = FIRST._replace(index=index)
        pair.left.send(op, (torch.zeros(1),))
        pair.there.deliver(1, 8)  # the position of the mark, without the mark
        assert received(pair.right) == {}
        pair.there.deliver(1, 64)
        assert received(pair.right) == {}
        pair.deliver_all()
        assert list(received(pair.right)) == [op]
        received(pair.left)


def test_large_tensors_precede_their_frame() -> None:
    pair, weight = Pair(), torch.randn(1000, requires_grad=True)
    pair.left.send(FIRST, (weight, torch.empty(0)))
    assert not pair.left.sending[0].value[0].requires_grad, "a value in flight keeps no graph"
    pair.deliver_all()
    assert received(pair.right) == {}, "no receive of the first tensor of a size is posted"
    pair.deliver_all()
    arrived = received(pair.right)[FIRST]
    assert torch.equal(arrived[0], weight)
    assert arrived[1].shape == (0,)


def test_later_tensors_of_a_size_arrive_while_the_rank_computes() -> None:
    pair, mailbox = Pair(), dict[Op, Any]()
    for index in range(6):
        value = torch.full((500, 2), float(index)), torch.full((300,), index)
        pair.left.send(FIRST._replace(index=index), value)
        pair.deliver_all()
        pair.right.poll(mailbox)
        assert len(mailbox) == (index + 1 if index else 0), "received with one poll"
        if not index:
            pair.deliver_all()
            pair.right.poll(mailbox)
    assert [[float(tensor.flatten()[0]) for tensor in value] for value in mailbox.values()] == [
        [float(index)] * 2 for index in range(6)
    ]
    tensors = [tensor for value in mailbox.values() for tensor in value]
    assert len({tensor.data_ptr() for tensor in tensors}) == 12, "a value keeps its memory"


def test_many_sizes_share_a_tag() -> None:
    pair, sizes, mailbox = Pair(), [100 + 8 * number for number in range(2 * gloo_channel._SIZES)] * 2, dict[Op, Any]()
    for index, size in enumerate(sizes):
        pair.left.send(FIRST._replace(index=index), (torch.full((size,), float(index)),))
        for _ in range(2):
            pair.deliver_all()
            pair.right.poll(mailbox)
    assert [(value[0].numel(), float(value[0][-1])) for value in mailbox.values()] == [
        (size, float(index)) for index, size in enumerate(sizes)
    ]
    assert len(pair.right.ahead) == gloo_channel._SIZES


def test_values_arrive_in_order_beyond_the_posted_receives() -> None:
    pair, count, mailbox = Pair(), 3 * gloo_channel._SLOTS, dict[Op, Any]()
    for index in range(count):
        pair.left.send(FIRST._replace(index=index), (torch.tensor([index]),))
    for _ in range(count):
        pair.deliver_all()
        pair.right.poll(mailbox)
    assert [(op.index, int(value[0])) for op, value in mailbox.items()] == [(index, index) for index in range(count)]


def test_receiver_waits_for_no_peer_that_reads_nothing() -> None:
    """The peer may wait for another rank, which may wait for this one."""
    pair, count = Pair(), 300
    mailbox: dict[Op, Any] = {}
    for index in range(count):
        pair.left.send(FIRST._replace(index=index), (torch.zeros(1),))
        pair.deliver_all()
        pair.right.poll(mailbox)  # a wait for an unread acknowledgement fails
    assert len(mailbox) == count
    assert len(pair.right.sending) == gloo_channel._MAX_UNREAD
    received(pair.left)
    assert len(pair.left.sending) <= count - gloo_channel._MAX_UNREAD * gloo_channel._ACKNOWLEDGED
    pair.left.send(FIRST._replace(index=count), (torch.zeros(1),))
    pair.deliver_all()
    received(pair.right)
    pair.deliver_all()
    received(pair.left)
    assert len(pair.left.sending) <= 1, "acknowledged with the next value"


def test_unread_evaluations_are_bounded() -> None:
    pair, sent = Pair(), 0
    while pair.left.may_evaluate():
        pair.left.send(Op(0, Kind.EVALUATE, sent), (torch.zeros(1),))
        sent += 1
    assert sent == CAPACITY
    pair.deliver_all()
    assert len(received(pair.right)) == CAPACITY
    pair.deliver_all()
    received(pair.left)
    assert not pair.left.may_evaluate(), "received and unread"
    for _ in range(CAPACITY):
        pair.right.evaluation_taken()
    pair.deliver_all()
    received(pair.left)
    assert pair.left.may_evaluate()


def test_last_frame_closes_the_channel() -> None:
    pair = Pair()
    pair.left.send(FIRST, (torch.zeros(1),))
    pair.left.send_end()
    pair.deliver_all()
    assert list(received(pair.right)) == [FIRST]
    assert pair.right.closed
    assert not pair.left.closed
