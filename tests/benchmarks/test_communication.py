"""Time of a value from rank to rank, and of a gradient all-reduce on two ranks: the suite, and the libraries."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from suite.comm.p2p.message import pack, unpack
from suite.core.op import Kind, Op
from tests.support.samples import measured_elsewhere, play, tell, timed

ROUNDS = {  # samples per bytes of a message, and of a sum
    "round_trips": {8 << 10: 200, 256 << 10: 100, 4 << 20: 30},
    "all_reduces": {256 << 10: 100, 8 << 20: 30},
}
TIMING = {
    "round_trips": "half of a round trip on rank 0, perf_counter; all operations take turns",
    "all_reduces": "one all-reduce on the slower rank, perf_counter; all operations take turns",
}
OPERATIONS = {  # kind, whether it is a peer, backend
    "suite over MPI": ("round_trips", False, "mpi"),
    "suite over gloo": ("round_trips", False, "gloo"),
    "gloo send/recv": ("round_trips", True, "gloo"),
    "MPI Isend/Irecv": ("round_trips", True, "mpi"),
    "suite exchange over MPI": ("all_reduces", False, "mpi"),
    "suite exchange over MPI bfloat16": ("all_reduces", False, "mpi"),
    "MPI Allreduce": ("all_reduces", True, "mpi"),
    "gloo all_reduce": ("all_reduces", True, "gloo"),
    "gloo all_reduce bfloat16": ("all_reduces", True, "gloo"),
}


@cache
def took(kind: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of every message or sum, by operation and bytes."""
    return timed("program_messages.py", ROUNDS[kind], kind)


@measured_elsewhere
@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name, row in OPERATIONS.items() for size in ROUNDS[row[0]]]
)
def test_a_message_or_a_sum_of_two_ranks(benchmark: Any, name: str, size: int) -> None:
    kind, peer, backend = OPERATIONS[name]
    benchmark.group = f"{kind} of {size} bytes"
    samples = took(kind)[name][str(size)]
    assert len(samples) == ROUNDS[kind][size]
    play(benchmark, samples)
    tell(benchmark, peer=peer, ranks=2, timing=TIMING[kind], bytes=size, interface="lo", backend=backend)


def test_a_header(benchmark: Any) -> None:
    benchmark.group = "the header of a message"
    op, value, buffer = Op(1, Kind.FORWARD, 7), (torch.empty(1, 32, 64),), torch.empty(256, dtype=torch.uint8)
    view = memoryview(buffer.numpy().data)

    def there_and_back() -> Op:
        pack(op, value, buffer, inline=False)
        return unpack(buffer, view, buffer.device)[0]

    assert benchmark(there_and_back) == op
    tell(benchmark, peer=False, timing="pytest-benchmark's own clock, one process")
