"""The rank program of the benchmarks runs with few rounds; plain pytest skips the benchmarks themselves.

The program checks every value itself. This test checks that every operation and size ran.
"""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.test_communication import OPERATIONS, ROUNDS
from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT


@pytest.mark.parametrize("kind", ROUNDS)
def test_benchmark_times_every_operation(kind: str) -> None:
    program = ROOT / "tests" / "benchmarks" / "program_messages.py"
    took = json.loads(run_persistent(2, program, kind, "4096", "3", "100000", "2"))
    assert {name for name, row in OPERATIONS.items() if row[0] == kind} <= took.keys()
    for samples in took.values():
        assert {size: len(times) for size, times in samples.items()} == {"4096": 3, "100000": 2}
        assert all(0 < time < 60 for times in samples.values() for time in times)
