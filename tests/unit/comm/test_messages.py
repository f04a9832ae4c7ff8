"""Round trip of values over an MPI channel from one rank to itself; tests/distributed has several ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from suite.comm.p2p.host_memory import HostBuffer, HostDevice
from suite.comm.p2p.message import ALIGN, CLOSE
from suite.comm.p2p.mpi import MpiChannel
from suite.comm.p2p.polling import wait_until
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from tests.support.refusals import refused

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
OPS = st.builds(Op, st.integers(0, 2**31), st.sampled_from(Kind), st.integers(0, 2**62)).filter(lambda op: op != CLOSE)


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of random bits, NaN patterns included; a bool is 0 or 1."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
VALUES = st.lists(st.builds(filled, st.sampled_from(DTYPES), SHAPES, st.integers(0, 99)), max_size=6).map(tuple)


class SelfChannel:
    """Both ends of a channel from this process to itself."""

    def __init__(self, eager_bytes: int, landing: Any = torch.device("cpu"), kind: Any = None) -> None:  # noqa: B008
        self.comm, kind = MPI.COMM_SELF.Dup(), kind or (lambda size: torch.empty(size, dtype=torch.uint8))
        world: Any = SimpleNamespace(rank=0, eager_bytes=eager_bytes, landing=landing, buffer=kind)
        self.ends = MpiChannel(world, self.comm, 0, (0,))
        self.mailbox: dict[Op, Any] = {}

    def progress(self) -> None:
        self.ends.poll(self.mailbox)

    def through(self, op: Op, value: tuple[Any, ...], messages: int | None = None) -> tuple[Any, ...]:
        """What arrives of a value, after a check that it was sent as so many messages."""
        self.ends.send(op, value)
        assert messages in (None, len(self.ends.sending[-1][0]))
        assert wait_until(lambda: op in self.mailbox and not self.ends.sending, self.progress, timeout=20)
        if op.kind is Kind.EVALUATE:  # else no more than the capacity would arrive
            self.ends.read_evaluation()
        return self.mailbox.pop(op)

    def close(self) -> None:
        self.ends.close()
        self.comm.Free()


@pytest.fixture(scope="module")
def channel() -> Iterator[SelfChannel]:
    self_channel = SelfChannel(4 * ALIGN)
    yield self_channel
    self_channel.close()


@settings(max_examples=40, deadline=None)
@given(OPS, VALUES)
def test_values_arrive_bit_for_bit(channel: SelfChannel, op: Op, value: tuple[torch.Tensor, ...]) -> None:
    """About half of these values are too large for one message of 256 bytes."""
    arrived = channel.through(op, value)
    assert [(t.dtype, t.shape) for t in arrived] == [(t.dtype, t.shape) for t in value]
    assert [bits(t) for t in arrived] == [bits(t) for t in value]


@pytest.mark.parametrize("count", [15, 40])
def test_send_refuses_a_header_too_large(channel: SelfChannel, count: int) -> None:
    size = 18 + 2 + count * len('["float32", [1, 1]], ') - 2
    assert size > 256
    with refused(InvalidRequest, subject=f"{size} bytes", legal=f"eager_bytes={-(-size // ALIGN) * ALIGN}"):
        channel.ends.send(Op(0, Kind.FORWARD, 0), tuple(torch.ones(1, 1) for _ in range(count)))
    assert not channel.ends.sending
    assert channel.through(Op(0, Kind.FORWARD, 1), (torch.ones(2),))[0].tolist() == [1.0, 1.0]


ROOT = Path(__file__).resolve().parents[3]
SIZES = (0, 1, 100, 4 * ALIGN, 100_000)


def filled_buffer(size: int) -> HostBuffer:
    buffer = HostBuffer(size)
    memoryview(buffer.memory)[:] = bytes((7 * index + size) % 251 for index in range(size))
    return buffer


def test_buffers_arrive_byte_for_byte() -> None:
    channel = SelfChannel(4 * ALIGN, HostDevice, HostBuffer)
    for index, size in enumerate(SIZES):
        value = filled_buffer(size)
        (arrived,) = channel.through(Op(0, Kind.FORWARD, index), (value,), messages=1 if size <= 100 else 2)
        assert arrived is not value
        assert bytes(arrived.memory) == bytes(value.memory)
    channel.close()


def test_emulated_ranks_load_no_torch() -> None:
    """Sixteen such ranks start in the time of one rank with torch."""
    names = (
        "suite.runner.ranks.rank",
        "suite.runner.executors.emulated_rank",
        "suite.comm.p2p.host_memory",
        "suite.simulate.cost.measured",
        "baselines.gpipe",
    )
    code = (
        f"import sys\nfor name in {names}: __import__(name)\nprint([name for name in sys.modules if name == 'torch'])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
