"""Round trip of a value over an MPI channel: header, dtypes, shapes, bytes.

The channel of these tests leads from one rank to itself; tests/distributed has several ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from suite.comm.p2p.message import ALIGN, CLOSING, decode, dtypes, encode
from suite.comm.p2p.mpi import MpiWorld, _Inbound, _Outbound
from suite.comm.p2p.polling import until
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
OPS = st.builds(Op, st.integers(0, 2**31), st.sampled_from(Kind), st.integers(0, 2**62)).filter(
    lambda op: op != CLOSING
)


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Any bits at all of this type, not-a-numbers among them; a truth value is 0 or 1."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


VALUES = st.lists(st.builds(filled, st.sampled_from(dtypes()), SHAPES, st.integers(0, 99)), max_size=6).map(tuple)


@given(OPS, VALUES, st.booleans(), st.binary(max_size=9))
def test_a_header_reads_back(op: Op, value: tuple[torch.Tensor, ...], inline: bool, behind: bytes) -> None:
    head = encode(op, value, inline)
    assert decode(head + behind) == (op, inline, [(t.dtype, tuple(t.shape)) for t in value], len(head))
    assert decode(memoryview(head))[0] == op


def test_many_tensors_and_many_dimensions() -> None:
    op = Op(3, Kind.FORWARD, 7)
    value = tuple(torch.zeros((1,) * (number % 20)) for number in range(1000))
    _, _, tensors, _ = decode(encode(op, value, True))
    assert [len(shape) for _, shape in tensors] == [number % 20 for number in range(1000)]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn], ids=str)
def test_a_dtype_that_lanes_do_not_know_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidRequest, match=rf"a tensor of {dtype} in a channel; rule: one of torch\.float32, "):
        encode(Op(0, Kind.FORWARD, 0), (torch.empty(2, dtype=dtype),), True)


class Channel:
    """Both ends of a channel of this process to itself."""

    def __init__(self, inline: int) -> None:
        self.comm = MPI.COMM_SELF.Dup()
        self.inbound = _Inbound(self.comm, 0, inline, torch.device("cpu"))
        self.outbound = _Outbound(self.comm, 0, inline)
        self.mailbox: dict[Op, Any] = {}

    def progress(self) -> None:
        self.inbound.poll(self.mailbox)
        self.outbound.poll()

    def through(self, op: Op, value: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self.outbound.send(op, value)
        assert until(lambda: op in self.mailbox and not self.outbound.sending, self.progress, timeout=20)
        return self.mailbox.pop(op)

    def close(self) -> None:
        self.inbound.close()
        self.comm.Free()


@pytest.fixture(scope="module")
def channel() -> Iterator[Channel]:
    made = Channel(4 * ALIGN)
    yield made
    made.close()


@settings(max_examples=150, deadline=None)
@given(OPS, VALUES)
def test_values_arrive_bit_for_bit_in_one_message_or_in_several(
    channel: Channel, op: Op, value: tuple[torch.Tensor, ...]
) -> None:
    """256 bytes inline: about half of these values are too large for one message."""
    arrived = channel.through(op, value)
    assert [(t.dtype, t.shape) for t in arrived] == [(t.dtype, t.shape) for t in value]
    assert [bits(t) for t in arrived] == [bits(t) for t in value]


def test_both_ways_are_taken_and_large_payload_is_not_copied(channel: Channel) -> None:
    op, small, large = Op(1, Kind.BACKWARD, 5), torch.arange(8.0), torch.arange(1000.0)
    channel.outbound.send(op, (small,))
    assert len(channel.outbound.sending[-1][0]) == 1
    channel.outbound.send(op._replace(index=6), (small, large, torch.empty(0, 3)))
    requests, (_, value) = channel.outbound.sending[-1]
    assert len(requests) == 3  # the header and two tensors; an empty one is all in its header
    assert value[1] is large
    until(lambda: len(channel.mailbox) == 2 and not channel.outbound.sending, channel.progress, timeout=20)
    assert torch.equal(channel.mailbox.pop(op)[0], small)
    arrived = channel.mailbox.pop(op._replace(index=6))
    assert torch.equal(arrived[1], large)
    assert arrived[2].shape == (0, 3)


def test_values_stay_first_in_first_out(channel: Channel) -> None:
    sizes = [3, 500, 0, 70, 2, 900]
    for index, size in enumerate(sizes):
        channel.outbound.send(Op(1, Kind.FORWARD, index), (torch.full((size,), float(index)),))
    until(lambda: len(channel.mailbox) == len(sizes), channel.progress, timeout=20)
    assert [op.index for op in channel.mailbox] == list(range(len(sizes)))
    for op, (tensor,) in channel.mailbox.items():
        assert tensor.tolist() == [float(op.index)] * sizes[op.index]
    channel.mailbox.clear()


def test_an_evaluation_is_sent_when_it_is_received(channel: Channel) -> None:
    channel.progress()
    op = Op(0, Kind.EVALUATE, 0)
    assert channel.through(op, (torch.ones(3),))[0].tolist() == [1.0, 1.0, 1.0]
    assert not channel.outbound.sending


@pytest.mark.parametrize("count", [15, 40])
def test_a_header_that_is_too_large_is_refused(channel: Channel, count: int) -> None:
    value = tuple(torch.ones(1, 1) for _ in range(count))
    size = 16 + count * (2 + 2 * 8)
    assert size > 256
    with pytest.raises(
        InvalidRequest, match=f"a header of {size} bytes; rule: at most inline=256 bytes; legal: inline="
    ):
        channel.outbound.send(Op(0, Kind.FORWARD, 0), value)
    assert not channel.outbound.sending
    assert channel.through(Op(0, Kind.FORWARD, 1), (torch.ones(2),))[0].tolist() == [1.0, 1.0]


def test_a_message_that_is_too_small_to_be_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^inline=255; rule: .*, at least 256; legal: inline=16384"):
        MpiWorld(inline=255)


def test_the_last_message_of_a_neighbour_leaves_no_receive_posted() -> None:
    closing = Channel(4 * ALIGN)
    closing.outbound.send(CLOSING, ())
    assert until(lambda: closing.inbound.ended and not closing.outbound.sending, closing.progress, timeout=20)
    assert closing.inbound.posted is None
    assert not closing.mailbox
    closing.close()
