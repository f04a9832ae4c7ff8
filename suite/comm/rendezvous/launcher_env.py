"""Rank, world size, local rank and launcher of this process, from the environment.

`launch_info` reads the variables of torchrun, Open MPI, MPICH, PMIx and Slurm, in that order, before any library is
initialised. The innermost launcher wins: ranks that torchrun or mpiexec starts inside a Slurm job also see Slurm's
variables. A process without a launcher is a world of one rank. A batch script is no rank, although Slurm sets a
rank's variables for it: only the tasks of a step are ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from suite.core.errors import InvalidRequest, UnknownName


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """How a process was started.

    Attributes:
        launcher: "torchrun", "mpi", "slurm" or "none".
        rank: Rank in the world.
        size: Number of ranks.
        local_rank: Rank on its host.
        local_size: Ranks on its host; None where the launcher does not set it.
    """

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int | None = None


# variables of each launcher: rank, world size, local rank, local world size
_VARIABLES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_STEP_VARIABLES = ("SLURM_STEP_ID", "SLURM_STEPID")  # set in the tasks of a step only
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_FOREIGN = ("WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE", "PALS_SIZE")  # other launchers
LAUNCHERS = ("torchrun", "mpi", "slurm", "none")


def launch_info(environment: Mapping[str, str] | None = None, *, launcher: str | None = None) -> LaunchInfo:
    """Read how this process was started.

    Args:
        environment: Variables to read; None reads those of this process.
        launcher: The launcher whose variables are read; None takes the innermost launcher.

    Raises:
        InvalidRequest: Without variables of `launcher`, or for a PMIx rank without a world size.
        UnknownName: For an unknown launcher.
    """
    variables = os.environ if environment is None else environment
    if launcher not in (None, *LAUNCHERS):
        raise UnknownName("launcher", str(launcher), LAUNCHERS)
    if launcher == "none":
        return LaunchInfo("none")
    for info in _launches(variables):
        if info is not None and launcher in (None, info.launcher):
            return info
    if launcher is not None:
        raise InvalidRequest(
            f"no variables of {launcher} in this process", rule="a launcher sets the rank and the world size"
        )
    if foreign := next((name for name in _FOREIGN if variables.get(name, "1") not in ("", "0", "1")), None):
        raise InvalidRequest(
            f"{foreign}={variables[foreign]} without a rank that this project reads",
            rule="each process of an unknown launcher would train alone",
            legal="mpiexec, torchrun or srun; or the variable unset",
        )
    return LaunchInfo("none")


def _launches(variables: Mapping[str, str]) -> Iterator[LaunchInfo | None]:
    """The settings of each launcher, the innermost launcher first."""
    for launcher, rank, size, local_rank, local_size in _VARIABLES:
        if rank in variables and size in variables:
            count = _number(variables, local_size) if local_size in variables else None
            yield _launch(launcher, variables, rank, size, local_rank=local_rank, local_size=count)
    yield _pmix(variables)
    yield _slurm(variables)


def _pmix(variables: Mapping[str, str]) -> LaunchInfo | None:
    """PMIx sets the rank only. Its server holds the world size, which Slurm sets as well."""
    if "PMIX_RANK" not in variables:
        return None
    size = next((name for name in _STEP_SIZES if name in variables), None)
    if size is not None and any(name in variables for name in _STEP_VARIABLES):
        tasks = _tasks_on_node(variables)
        return _launch("mpi", variables, "PMIX_RANK", size, local_rank="SLURM_LOCALID", local_size=tasks)
    if "PMIX_NAMESPACE" in variables:  # without a size each rank would run as a world of one
        raise InvalidRequest(
            f"PMIX_RANK={variables['PMIX_RANK']} without a world size",
            rule="the PMIx server alone holds the world size",
            legal="mpiexec, torchrun or srun",
        )
    return None


def _slurm(variables: Mapping[str, str]) -> LaunchInfo | None:
    if "SLURM_PROCID" not in variables or not any(name in variables for name in _STEP_VARIABLES):
        return None
    size = next((name for name in _STEP_SIZES if name in variables), None)
    if size is None or variables[size] == "1":  # an interactive shell is a step of one task
        return None
    tasks = _tasks_on_node(variables)
    return _launch("slurm", variables, "SLURM_PROCID", size, local_rank="SLURM_LOCALID", local_size=tasks)


def _tasks_on_node(variables: Mapping[str, str]) -> int | None:
    """Tasks of the step on this node. Slurm writes 2(x3),1 for 2, 2, 2 and 1."""
    counts: list[int] = []
    for entry in variables.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry.strip()):
            counts += [int(match[1])] * int(match[2] or 1)
    node = variables.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


def _launch(
    launcher: str, variables: Mapping[str, str], rank: str, size: str, *, local_rank: str, local_size: int | None
) -> LaunchInfo:
    """Launch settings from the variables with these names; the local rank defaults to the rank."""
    rank_number, size_number = _number(variables, rank), _number(variables, size)
    local_number = _number(variables, local_rank) if local_rank in variables else rank_number
    if rank_number >= size_number:
        raise InvalidRequest(
            f"{rank}={rank_number} with {size}={size_number}", rule="ranks count from 0 to one less than the size"
        )
    return LaunchInfo(launcher, rank_number, size_number, local_number, local_size)


def _number(variables: Mapping[str, str], name: str) -> int:
    if not variables[name].isdigit():
        raise InvalidRequest(f"{name}={variables[name]}", rule="a whole number", legal=f"{name}=0")
    return int(variables[name])
