"""Flags of mpiexec that this machine needs."""

from __future__ import annotations

import os

import pytest
from torch.nn import Linear

from suite import AdamW, Engine
from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.comm.rendezvous import mpiexec_flags
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid

ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
CROWD = "--map-by :OVERSUBSCRIBE --bind-to none "


def test_command_line_has_the_required_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, allowed, ranks, version, variables, options in (
        (0, "", 4, "mpiexec (Open MPI) 5.0.11", ROOT, CROWD),
        (0, "", 2, "mpiexec (Open MPI) 5.0.11", ROOT, ""),
        (0, "1", 4, "mpiexec (OpenRTE) 4.1", "", CROWD),
        (1000, "", 3, "mpiexec (Open MPI) 5.0.11", "", CROWD),
        (0, "", 4, "HYDRA build details:", "", ""),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr(mpiexec_flags, "cores", lambda: 2)
        monkeypatch.setattr(mpiexec_flags, "mpi_version", lambda _, version=version: version)
        for name in mpiexec_flags.ROOT_VARIABLES:
            monkeypatch.setenv(name, allowed)
        line = f"{variables}mpiexec -n {ranks} {options}python -m mpi4py a.py"
        assert mpiexec_flags.command_line(ranks, "a.py") == line


def test_engine_names_the_command_line_for_its_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpiexec_flags, "command_line", lambda ranks: f"the line for {ranks}")
    more = {"optimizer": AdamW(lr=0.1), "microbatch": 1, "world": LoopbackWorld(Hub(1), 0)}
    with pytest.raises(InvalidRequest) as caught:
        Engine([Linear(2, 2)], loss=lambda x, y: x.sum(), grid=Grid(data=2), **more)
    assert caught.value.legal == "the line for 2"
