"""Law 3 over real messages: what ranks of an asynchronous pipeline leave is what their replay leaves, bit for bit."""

from __future__ import annotations

import re

import pytest
from ranks import ROOT, run_ranks

PROGRAM = ROOT / "tests" / "distributed" / "program_asynchronous.py"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "transport", "launcher"),
    [(2, "mpi", "mpiexec"), (4, "mpi", "mpiexec"), (2, "ordered", "torchrun")],
)
def test_ranks_equal_their_replay(ranks: int, transport: str, launcher: str) -> None:
    said = run_ranks(ranks, PROGRAM, transport, launcher=launcher)
    found = re.search(rf"{transport}: (\d+) weights compared", said)
    assert found, said
    assert int(found[1]) >= 40
