"""Law 2 over every transport and launcher: MPI with one and two messages per value, gloo, NCCL's channels."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.persistent_ranks import run_persistent
from tests.support.ranks import run_ranks

HERE = Path(__file__).parent
LAWS = HERE / "program_laws.py"

# Each entry: (transport, order, eager bytes and cases of a world, expected description). Ranks of one mpiexec run all
# of its entries. The marker adds every case under every launcher and on four ranks. Two cases suffice otherwise: one
# has ties, the other has tuples of several dtypes and running statistics.
WORLDS = {
    "mpiexec": [
        ("auto any 16384 all", "MpiWorld"),
        ("mpi any 512 some", "MpiWorld"),  # a header message, followed by tensors
        ("mpi static 16384 some", "MpiWorld"),
        ("gloo any 16384 some", "TorchWorld"),
        ("ordered static 16384 some", "TorchWorld"),
    ],
    "torchrun": [
        ("auto any 512 some", "TorchWorld"),
        ("auto any 512 all", "TorchWorld"),
        ("gloo static 16384 some", "TorchWorld"),
        ("ordered static 16384 some", "TorchWorld"),
    ],
}
SELDOM = [("torchrun", *one) for one in WORLDS["torchrun"][1:]]  # the same worlds run under mpiexec
OF_FOUR = ("auto any 16384 some", "ordered any 16384 some")
OF_FOUR_SELDOM = ("auto any 16384 all", "gloo any 16384 some")


@cache
def started(ranks: int, launcher: str, worlds: tuple[str, ...]) -> tuple[str, bool]:
    """Output of the ranks of one launch, for all worlds in order, and whether all succeeded."""
    try:
        if launcher == "mpiexec":
            return run_persistent(ranks, LAWS, *worlds, deadline=180), True
        return run_ranks(ranks, LAWS, *worlds, launcher=launcher, deadline=180), True
    except AssertionError as failed:
        return str(failed), False


def compared(ranks: int, launcher: str, transport: str, worlds: tuple[str, ...]) -> str:
    """Line of one world. The first missing world fails, or the last one if the launch failed."""
    out, well = started(ranks, launcher, worlds)
    assert f"{transport}: " in out, out
    assert well or transport != worlds[-1], out
    return out.partition(f"{transport}: ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("launcher", "transport", "world"),
    [
        pytest.param(launcher, *one, marks=[pytest.mark.exhaustive] if (launcher, *one) in SELDOM else [])
        for launcher, environment in WORLDS.items()
        for one in environment
    ],
)
def test_gradients_match_reference_on_two_ranks(launcher: str, transport: str, world: str) -> None:
    together = tuple(name for name, _ in WORLDS[launcher]) if launcher == "mpiexec" else (transport,)
    assert compared(2, launcher, transport, together).startswith(f"{world}, 2 grids, ")


@pytest.mark.parametrize(
    ("transport", "together"),
    [
        *((one, OF_FOUR) for one in OF_FOUR),
        *(pytest.param(one, OF_FOUR_SELDOM, marks=pytest.mark.exhaustive) for one in OF_FOUR_SELDOM),
    ],
)
def test_gradients_match_reference_on_four_ranks(transport: str, together: tuple[str, ...]) -> None:
    assert ", 3 grids, " in compared(4, "mpiexec", transport, together)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_wait_without_progress_would_deadlock(ranks: int) -> None:
    assert "no deadlock" in run_persistent(ranks, HERE / "program_rendezvous.py", deadline=60)
