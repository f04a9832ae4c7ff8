"""Law 2 over every transport, under every launcher: MPI with one-message and two-message values, gloo, NCCL's lanes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_ranks, without_single_copy

HERE = Path(__file__).parent
LAWS = HERE / "program_laws.py"


@pytest.mark.parametrize(
    ("launcher", "transport", "order", "inline", "world"),
    [
        ("mpiexec", "auto", "any", "16384", "MpiWorld"),
        ("mpiexec", "mpi", "any", "512", "MpiWorld"),  # header first, tensors after it
        ("mpiexec", "mpi", "static", "16384", "MpiWorld"),
        ("mpiexec", "gloo", "any", "16384", "TorchWorld"),
        ("torchrun", "auto", "any", "512", "TorchWorld"),
        ("torchrun", "gloo", "static", "16384", "TorchWorld"),
        ("torchrun", "ordered", "static", "16384", "TorchWorld"),
    ],
)
def test_two_ranks(launcher: str, transport: str, order: str, inline: str, world: str) -> None:
    out = run_ranks(2, LAWS, transport, order, inline, launcher=launcher)
    assert f"{world}: 2 grids" in out


@pytest.mark.parametrize("transport", ["auto", "gloo", "ordered"])
def test_four_ranks(transport: str) -> None:
    assert "3 grids" in run_ranks(4, LAWS, transport, "any", "16384", deadline=180)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_wait_without_progress_would_deadlock_here(ranks: int) -> None:
    out = run_ranks(ranks, HERE / "program_rendezvous.py", deadline=60, extra=without_single_copy())
    assert "no deadlock" in out


@pytest.mark.parametrize(("how", "launcher"), [("raise", "mpiexec"), ("exit", "mpiexec"), ("raise", "torchrun")])
def test_a_rank_that_leaves_ends_all(how: str, launcher: str) -> None:
    """No rank waits for ever for one that is gone."""
    with pytest.raises(AssertionError) as caught:
        run_ranks(2, HERE / "program_raises.py", how, launcher=launcher, deadline=60)
    said = str(caught.value)
    assert "were not done" not in said
    assert how == "exit" or "a deliberate fault" in said
