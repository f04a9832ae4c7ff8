"""Law 2 over MPI on 2 and 4 ranks, one-message and two-message values, with and without kernel-assisted copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks, without_single_copy

HERE = Path(__file__).parent


@pytest.mark.parametrize("inline", [16384, 512], ids=["inline", "header_then_tensors"])
def test_two_ranks(inline: int) -> None:
    out = run_ranks(2, HERE / "program_laws.py", str(inline))
    assert out.startswith("2 grids")


def test_four_ranks() -> None:
    assert run_ranks(4, HERE / "program_laws.py", "16384", deadline=180).startswith("3 grids")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_wait_without_progress_would_deadlock_here(ranks: int) -> None:
    out = run_ranks(ranks, HERE / "program_rendezvous.py", deadline=60, extra=without_single_copy())
    assert "no deadlock" in out
