"""Decides who this process is: its rank, the size of its world, and which launcher said so.

One function reads what torchrun, Open MPI and MPICH leave in the environment, in that order, before any library is
initialised. A process without a launcher is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """How a process was started. launcher: torchrun, mpi or none; local_rank: its number on its host."""

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0


# what each launcher tells a rank: rank, size, number on its host
_TOLD = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def started(environment: Mapping[str, str] | None = None) -> Start:
    """What the launcher of this process (or of one with that `environment`) told it."""
    told = os.environ if environment is None else environment
    for launcher, rank, size, local in _TOLD:
        if rank in told and size in told:
            return Start(launcher, int(told[rank]), int(told[size]), int(told.get(local, told[rank])))
    return Start("none")
