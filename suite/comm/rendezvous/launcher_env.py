"""Rank, world size, local rank and launcher of this process, from the environment.

`launch_info` reads the variables of torchrun, Open MPI, MPICH, PMIx and Slurm, in that order, before any library is
initialised. The innermost launcher wins: ranks that torchrun or mpiexec starts inside a Slurm job also see Slurm's
variables. A process without a launcher is a world of one rank. A batch script is no rank, although Slurm sets a
rank's variables for it: only the tasks of a step are ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from suite.core.errors import InvalidRequest


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


def launch_info(environment: Mapping[str, str] | None = None) -> LaunchInfo:
    """Read how this process was started, from `environment` or from the variables of this process.

    Raises InvalidRequest for a PMIx rank without a world size, and for ranks of a launcher that this project does not
    read."""
    variables = os.environ if environment is None else environment
    for launcher, rank, size, local_rank, local_size in _VARIABLES:
        if rank in variables and size in variables:
            count = int(variables[local_size]) if local_size in variables else None
            return _launch(launcher, variables, rank, size, local_rank=local_rank, local_size=count)
    if (info := _task_of_step("mpi", variables, "PMIX_RANK")) is not None:
        return info
    if "PMIX_RANK" in variables and "PMIX_NAMESPACE" in variables:
        raise InvalidRequest(
            f"PMIX_RANK={variables['PMIX_RANK']} without a world size",
            rule="the PMIx server alone holds the world size, and each rank would train alone",
            legal="mpiexec, torchrun or srun",
        )
    info = _task_of_step("slurm", variables, "SLURM_PROCID")
    if info is not None and info.size > 1:  # an interactive shell is a step of one task
        return info
    if foreign := next((name for name in _FOREIGN if variables.get(name, "1") not in ("", "0", "1")), None):
        raise InvalidRequest(
            f"{foreign}={variables[foreign]} without a rank that this project reads",
            rule="each process of an unknown launcher would train alone",
            legal="mpiexec, torchrun or srun; or the variable unset",
        )
    return LaunchInfo("none")


def _task_of_step(launcher: str, variables: Mapping[str, str], rank: str) -> LaunchInfo | None:
    """The rank of a task of a Slurm step, which has the size of the world; None outside of a step.

    PMIx sets the rank only."""
    size = next((name for name in _STEP_SIZES if name in variables), None)
    if rank not in variables or size is None or variables.keys().isdisjoint(_STEP_VARIABLES):
        return None
    tasks = _tasks_on_node(variables)
    return _launch(launcher, variables, rank, size, local_rank="SLURM_LOCALID", local_size=tasks)


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
    number, count = int(variables[rank]), int(variables[size])
    if number >= count:
        raise InvalidRequest(
            f"{rank}={number} with {size}={count}", rule="ranks count from 0 to one less than the size"
        )
    return LaunchInfo(launcher, number, count, int(variables.get(local_rank, number)), local_size)
