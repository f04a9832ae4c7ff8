"""Decides whether a distributed epoch is the dense one over MPI and gloo, and sends to the byte what its plan says."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = Path(__file__).parent / "program_graphs.py"


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "launcher"), [(2, "mpiexec"), (4, "torchrun"), (6, "mpiexec")])
def test_every_grid_and_exchange_over_real_messages(ranks: int, launcher: str) -> None:
    grids = sum(ranks % replication == 0 for replication in range(1, ranks + 1))
    assert f"{4 * grids} epochs" in run_ranks(ranks, PROGRAM, launcher=launcher)
