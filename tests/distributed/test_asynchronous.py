"""Law 3 over real messages: ranks of an asynchronous pipeline equal their replay bit for bit."""

from __future__ import annotations

import re

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import ROOT, run_ranks

PROGRAM = ROOT / "tests" / "distributed" / "program_asynchronous.py"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "transport", "launcher", "every"),
    [
        (2, "mpi", "mpiexec", 1),
        (2, "ordered", "mpiexec", 3),
        *(
            pytest.param(*row, marks=pytest.mark.exhaustive)
            for row in [(4, "mpi", "mpiexec", 1), (4, "mpi", "mpiexec", 3), (2, "ordered", "torchrun", 1)]
        ),
    ],
)
def test_ranks_equal_their_replay(ranks: int, transport: str, launcher: str, every: int) -> None:
    """All systems run on two ranks over MPI; elsewhere every third on the first grid, and others on the next."""
    if launcher == "mpiexec":
        output = run_persistent(ranks, PROGRAM, transport, str(every))
    else:
        output = run_ranks(ranks, PROGRAM, transport, str(every), launcher=launcher)
    match = re.search(rf"{transport}: (\d+) weights compared", output)
    assert match, output
    assert int(match[1]) >= (40 if every == 1 else 24)
