"""Decides how ranks find one another and how values travel: threads, MPI, process groups."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from suite.core.protocols import World

# what the launchers of MPI programs tell a rank about its world's size
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


def here(*, device: str = "cpu", **options: Any) -> World:
    """The world this process was started in: MPI under mpiexec (`options` are MpiWorld's), else one rank.

    A process has one MPI world: engines made one after the other share it."""
    if any(int(os.environ.get(name, "1")) > 1 for name in _SIZES):
        return _mpi_world(device, tuple(sorted(options.items())))
    from suite.comm.loopback import Hub, LoopbackWorld

    return LoopbackWorld(Hub(1), 0, device=device)


@cache
def _mpi_world(device: str, options: tuple[tuple[str, Any], ...]) -> World:
    from suite.comm.mpi import MpiWorld

    return MpiWorld(device=device, **dict(options))


def rank_here() -> int:
    """The rank its launcher gave this process, before any library is initialised; 0 without a launcher."""
    return next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), 0)


def local_rank_here() -> int:
    """This process's number among those on its host: which device is its own."""
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    return next((int(os.environ[name]) for name in names if name in os.environ), rank_here())
