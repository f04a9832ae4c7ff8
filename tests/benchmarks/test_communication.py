"""Time of a value from rank to rank, and of a gradient all-reduce on two ranks: the suite, and the libraries."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from suite.comm.p2p.message import decode, encode
from suite.core.op import Kind, Op
from tests.support.samples import measured_elsewhere, play, tell, timed

ROUNDS = {  # samples per bytes of a message, and of a sum
    "program_transports.py": {8 << 10: 200, 256 << 10: 100, 4 << 20: 30},
    "program_collectives.py": {256 << 10: 100, 8 << 20: 30},
}
TIMING = {
    "program_transports.py": "half of a round trip, by rank 0's perf_counter; all backends take turns",
    "program_collectives.py": "one all-reduce, the slower rank's perf_counter; all groups take turns",
}
EAGER = "comm.eager_bytes=16384; a new tensor per value"
BACKENDS = {  # program, whether it is a peer, backend, settings
    "suite over MPI": ("program_transports.py", False, "mpi", EAGER),
    "suite over gloo": ("program_transports.py", False, "gloo", EAGER),
    "torch send/recv": ("program_transports.py", True, "gloo", "dist.send, dist.recv into memory that is there"),
    "mpi4py Send/Recv": ("program_transports.py", True, "mpi", "Send, Recv into memory that is there"),
    "suite, exchange over MPI": ("program_collectives.py", False, "mpi", "comm.pair_exchange=true"),
    "suite, gloo": ("program_collectives.py", False, "gloo", "comm.pair_exchange=false; polled, 50 us naps"),
    "torch all_reduce": ("program_collectives.py", True, "gloo", "dist.all_reduce, blocking, default group"),
}


@cache
def took(program: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of every message or sum, by backend and bytes."""
    return timed(program, ROUNDS[program])


@measured_elsewhere
@pytest.mark.parametrize(("name", "size"), [(name, size) for name, row in BACKENDS.items() for size in ROUNDS[row[0]]])
def test_a_message_or_a_sum_of_two_ranks(benchmark: Any, name: str, size: int) -> None:
    program, peer, backend, settings = BACKENDS[name]
    benchmark.group = f"{program.removeprefix('program_').removesuffix('.py')} of {size} bytes"
    samples = took(program)[name][str(size)]
    assert len(samples) == ROUNDS[program][size]
    play(benchmark, samples)
    circumstances = {"timing": TIMING[program], "bytes": size, "interface": "lo", "backend": backend}
    tell(benchmark, peer=peer, ranks=2, settings=settings, **circumstances)


def test_a_header(benchmark: Any) -> None:
    benchmark.group = "the header of a message"
    op, value = Op(1, Kind.FORWARD, 7), (torch.empty(1, 32, 64),)
    assert benchmark(lambda: decode(encode(op, value, inline=True)))[0] == op
    tell(benchmark, peer=False, timing="pytest-benchmark's own clock, one process")
