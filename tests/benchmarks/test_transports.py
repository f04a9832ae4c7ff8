"""Time of one value from rank to rank: the suite's channels over MPI and gloo, and the libraries themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.comm.p2p.message import decode, encode
from suite.core.op import Kind, Op
from tests.support.samples import measured_elsewhere, play, tell, timed

ROUNDS = {8 << 10: 200, 256 << 10: 100, 4 << 20: 30}  # samples per bytes of a message
HALF = "half of a round trip, by rank 0's perf_counter; all backends take turns, message by message"
BACKENDS: dict[str, dict[str, Any]] = {
    "suite over MPI": {"peer": False, "backend": "mpi", "settings": "comm.eager_bytes=16384; a new tensor per value"},
    "suite over gloo": {"peer": False, "backend": "gloo", "settings": "comm.eager_bytes=16384; a new tensor per value"},
    "torch send/recv": {"peer": True, "backend": "gloo", "settings": "dist.send, dist.recv into memory that is there"},
    "mpi4py Send/Recv": {"peer": True, "backend": "mpi", "settings": "Send, Recv into memory that is there"},
}


@pytest.fixture(scope="module")
def took() -> dict[str, dict[str, list[float]]]:
    """Seconds of every message, by backend and bytes."""
    return timed("program_transports.py", ROUNDS)


@measured_elsewhere
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", ROUNDS)
def test_a_message(benchmark: Any, took: dict[str, dict[str, list[float]]], size: int, backend: str) -> None:
    benchmark.group = f"a message of {size} bytes"
    samples = took[backend][str(size)]
    assert len(samples) == ROUNDS[size]
    play(benchmark, samples)
    tell(benchmark, ranks=2, timing=HALF, bytes=size, interface="lo", **BACKENDS[backend])


def test_a_header(benchmark: Any) -> None:
    benchmark.group = "the header of a message"
    op, value = Op(1, Kind.FORWARD, 7), (torch.empty(1, 32, 64),)
    assert benchmark(lambda: decode(encode(op, value, inline=True)))[0] == op
    tell(benchmark, peer=False, timing="pytest-benchmark's own clock, one process")
