"""Time of a gradient all-reduce on two ranks: the suite's groups and torch.distributed's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.samples import measured_elsewhere, play, tell, timed

ROUNDS = {256 << 10: 100, 8 << 20: 30}  # samples per bytes of a sum
SLOWEST = "one all-reduce, the slower rank's perf_counter; both start together, all groups take turns, sum by sum"
GROUPS: dict[str, dict[str, Any]] = {
    "suite, exchange over MPI": {"peer": False, "backend": "mpi", "settings": "comm.pair_exchange=true"},
    "suite, gloo": {"peer": False, "backend": "gloo", "settings": "comm.pair_exchange=false; polled, 50 us naps"},
    "torch all_reduce": {"peer": True, "backend": "gloo", "settings": "dist.all_reduce, blocking, default group"},
}


@pytest.fixture(scope="module")
def took() -> dict[str, dict[str, list[float]]]:
    """Seconds of every sum, by group and bytes."""
    return timed("program_collectives.py", ROUNDS)


@measured_elsewhere
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("size", ROUNDS)
def test_a_sum_of_two(benchmark: Any, took: dict[str, dict[str, list[float]]], size: int, group: str) -> None:
    benchmark.group = f"a sum of {size} bytes over two ranks"
    samples = took[group][str(size)]
    assert len(samples) == ROUNDS[size]
    play(benchmark, samples)
    tell(benchmark, ranks=2, timing=SLOWEST, bytes=size, interface="lo", **GROUPS[group])
