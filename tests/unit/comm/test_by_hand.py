"""Flags of mpiexec that this machine needs."""

from __future__ import annotations

import os

import pytest

from suite.comm.rendezvous import mpiexec_flags
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid

ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
CROWD = "--map-by :OVERSUBSCRIBE --bind-to none "


@pytest.mark.parametrize(
    ("user", "allowed", "ranks", "kind", "before", "after"),
    [
        (0, "", 4, "mpiexec (Open MPI) 5.0.11", ROOT, CROWD),
        (0, "", 2, "mpiexec (Open MPI) 5.0.11", ROOT, ""),
        (0, "1", 4, "mpiexec (OpenRTE) 4.1", "", CROWD),
        (1000, "", 4, "mpiexec (Open MPI) 5.0.11", "", CROWD),
        (1000, "", 2, "mpiexec (Open MPI) 5.0.11", "", ""),
        (0, "", 4, "HYDRA build details:", "", ""),
    ],
)
def test_the_line_has_the_flags_that_are_needed(
    user: int, allowed: str, ranks: int, kind: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(mpiexec_flags, "cores", lambda: 2)
    monkeypatch.setattr(mpiexec_flags, "mpi_version", lambda _: kind)
    for name in mpiexec_flags.ROOT_VARIABLES:
        monkeypatch.setenv(name, allowed)
    assert mpiexec_flags.line(ranks, "a.py") == f"{before}mpiexec -n {ranks} {after}python -m mpi4py a.py"


def test_an_engine_in_a_world_of_another_size_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn import Linear

    from suite import AdamW, Engine

    monkeypatch.setattr(mpiexec_flags, "line", lambda ranks: f"the line for {ranks}")
    with pytest.raises(InvalidRequest, match="legal: the line for 2"):
        Engine([Linear(2, 2)], loss=lambda x, y: x.sum(), optimizer=AdamW(lr=0.1), microbatch=1, grid=Grid(data=2))
