"""Rank programs of the benchmarks run with few rounds; plain pytest skips the benchmarks themselves.

The programs check every value themselves. This test checks that every backend, group and size ran.
"""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.test_communication import BACKENDS, ROUNDS
from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT


@pytest.mark.parametrize("program", ROUNDS)
def test_transport_benchmark_times_every_backend(program: str) -> None:
    took = json.loads(run_persistent(2, ROOT / "tests" / "benchmarks" / program, "4096", "3", "100000", "2"))
    assert took.keys() == {name for name, row in BACKENDS.items() if row[0] == program}
    for samples in took.values():
        assert {size: len(times) for size, times in samples.items()} == {"4096": 3, "100000": 2}
        assert all(0 < time < 60 for times in samples.values() for time in times)
