"""Rank programs of the benchmarks run with few rounds; plain pytest skips the benchmarks themselves.

The programs check every value themselves. This test checks that every backend, group and size ran.
"""

from __future__ import annotations

import json

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"


@pytest.mark.parametrize(
    ("program", "contenders"),
    [
        ("program_transports.py", {"suite over MPI", "suite over gloo", "torch send/recv", "mpi4py Send/Recv"}),
        ("program_collectives.py", {"suite, exchange over MPI", "suite, gloo", "torch all_reduce"}),
    ],
)
def test_transport_benchmark_times_every_backend(program: str, contenders: set[str]) -> None:
    took = json.loads(run_persistent(2, BENCHMARKS / program, "4096", "3", "100000", "2"))
    assert took.keys() == contenders
    for samples in took.values():
        assert {size: len(times) for size, times in samples.items()} == {"4096": 3, "100000": 2}
        assert all(0 < time < 60 for times in samples.values() for time in times)
    table = (BENCHMARKS / program.replace("program", "test")).read_text()
    assert all(f'"{contender}": {{"peer"' in table for contender in contenders)
