"""Decides how ranks find one another and how values travel: threads, MPI, process groups."""

from __future__ import annotations

import os
from typing import Any

from suite.core.protocols import World

# what the launchers of MPI programs tell a rank about its world's size
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


def here(**options: Any) -> World:
    """The world this process was started in: MPI under mpiexec (`options` are MpiWorld's), else one rank."""
    if any(int(os.environ.get(name, "1")) > 1 for name in _SIZES):
        from suite.comm.mpi import MpiWorld

        return MpiWorld(**options)
    from suite.comm.loopback import Hub, LoopbackWorld

    return LoopbackWorld(Hub(1), 0)


def rank_here() -> int:
    """The rank its launcher gave this process, before any library is initialised; 0 without a launcher."""
    return next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), 0)
