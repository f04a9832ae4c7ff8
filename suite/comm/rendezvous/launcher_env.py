"""Rank, world size, local rank and launcher of this process, from the environment.

One function reads what torchrun, Open MPI, MPICH, PMIx and Slurm leave in the environment, in that order, before any
library is initialised: whoever starts ranks inside a Slurm job is nearer to them than Slurm. A process without a
launcher is alone. A batch script is no rank, though Slurm gives it a rank's variables: only a step's tasks are ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from suite.core.errors import InvalidRequest, UnknownName


@dataclass(frozen=True, slots=True)
class Start:
    """How a process was started.

    Attributes:
        launcher: torchrun, mpi, slurm or none.
        local_rank: Its number on its host.
        local_size: Ranks on its host; None where the launcher does not say.
    """

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int | None = None


# what each launcher tells a rank: rank, size, number on its host, ranks on its host
_TOLD = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")  # in the tasks of a step alone
LAUNCHERS = ("torchrun", "mpi", "slurm", "none")


def started(environment: Mapping[str, str] | None = None, *, launcher: str | None = None) -> Start:
    """What the launcher of this process (or of one with that `environment`) told it.

    launcher: the one to listen to; None for the first that has said something. Raises InvalidRequest where that one has
    said nothing, and for a rank of PMIx that nobody has told how many there are; UnknownName for a launcher of no name.
    """
    environ = os.environ if environment is None else environment
    if launcher not in (None, *LAUNCHERS):
        raise UnknownName("launcher", str(launcher), LAUNCHERS)
    if launcher == "none":
        return Start("none")
    for start in _said(environ):
        if start is not None and launcher in (None, start.launcher):
            return start
    if launcher is not None:
        raise InvalidRequest(
            f"no word of {launcher} to this process", rule="a launcher tells a rank its number and the size"
        )
    return Start("none")


def _said(told: Mapping[str, str]) -> Iterator[Start | None]:
    """Values set by each launcher, the innermost launcher first."""
    for launcher, rank, size, local, beside in _TOLD:
        if rank in told and size in told:
            yield _start(launcher, told, rank, size, local=local, beside=beside)
    yield _pmix(told)
    yield _slurm(told)


def _pmix(told: Mapping[str, str]) -> Start | None:
    """Its rank is in the environment; the size is asked of a server, unless Slurm has told it too."""
    if "PMIX_RANK" not in told:
        return None
    size = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in told), None)
    if size is not None and any(name in told for name in _STEP):
        return _start("mpi", told, "PMIX_RANK", size, local="SLURM_LOCALID", on_host=_on_this_node(told))
    if "PMIX_NAMESPACE" in told:  # each of several ranks would take itself for the only one
        raise InvalidRequest(
            f"PMIX_RANK={told['PMIX_RANK']} and no number of ranks",
            rule="PMIx leaves the size of a world with its server",
            legal="mpiexec, torchrun or srun",
        )
    return None


def _slurm(told: Mapping[str, str]) -> Start | None:
    if "SLURM_PROCID" not in told or not any(name in told for name in _STEP):
        return None
    size = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if name in told), None)
    if size is None or told[size] == "1":  # an interactive shell is a step of one task
        return None
    return _start("slurm", told, "SLURM_PROCID", size, local="SLURM_LOCALID", on_host=_on_this_node(told))


def _on_this_node(told: Mapping[str, str]) -> int | None:
    """Tasks of the step on this node; Slurm writes 2(x3),1 for 2, 2, 2 and 1."""
    counts: list[int] = []
    for part in told.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip()):
            counts += [int(match[1])] * int(match[2] or 1)
    node = told.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


def _start(
    launcher: str,
    told: Mapping[str, str],
    rank: str,
    size: str,
    *,
    local: str,
    beside: str = "",
    on_host: int | None = None,
) -> Start:
    """From the variables of these names. Raises InvalidRequest for values that are no rank numbers."""
    names = [rank, size, *([local] if local in told else []), *([beside] if beside in told else [])]
    for name in names:
        if not told[name].isdigit():
            raise InvalidRequest(
                f"{name}={told[name]}", rule="a whole number, as a launcher writes it", legal=f"{name}=0"
            )
    if int(told[rank]) >= int(told[size]):
        raise InvalidRequest(
            f"{rank}={told[rank]} of {size}={told[size]}", rule="ranks count from 0 to one less than the size"
        )
    here = int(told[beside]) if beside in told else on_host
    return Start(launcher, int(told[rank]), int(told[size]), int(told.get(local, told[rank])), here)
