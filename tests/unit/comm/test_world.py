"""Rank and world size from each launcher, flags of mpiexec, and the choice of a transport."""

from __future__ import annotations

import pytest

from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.comm.world import check_transport, init_world
from suite.core.errors import InvalidRequest
from suite.core.keys import in_config_keys
from tests.support.refusals import refused


def variables(text: str) -> dict[str, str]:
    """An environment from NAME=value words."""
    return dict(word.split("=") for word in text.split())


# variables of Slurm 22.05 in a batch script of four tasks on two nodes, and in a task of its step
BATCH = variables(
    "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
    "SLURM_TASKS_PER_NODE=2(x2)"
)
STEP = BATCH | variables(
    "SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=4 "
    "SLURM_STEP_TASKS_PER_NODE=2(x2)"
)
OMPI = variables(
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
    "PMIX_RANK=5 PMIX_NAMESPACE=prterun-host-1"
)
TORCHRUN = variables("RANK=3 WORLD_SIZE=4")
PMI = variables("PMI_RANK=1 PMI_SIZE=2")
PMIX = variables("PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.7.0")
SHELL = variables("SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1")


def test_launch_info_reads_each_launcher() -> None:
    for environment, expected in (
        ({}, LaunchInfo("none", 0, 1, 0)),
        ({**TORCHRUN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, LaunchInfo("torchrun", 3, 4, 1, 2)),
        (TORCHRUN, LaunchInfo("torchrun", 3, 4, 3)),
        (OMPI, LaunchInfo("mpi", 5, 8, 1, 4)),
        ({**PMI, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, LaunchInfo("mpi", 1, 2, 0, 1)),
        ({**PMI, "PMI_FD": "6", **STEP}, LaunchInfo("mpi", 1, 2, 1)),  # srun --mpi=pmi2
        # half a word is none: a rank without a size is a variable of somebody else's
        ({"RANK": "3"}, LaunchInfo("none", 0, 1, 0)),
        # the innermost launcher wins
        ({**TORCHRUN, **OMPI}, LaunchInfo("torchrun", 3, 4, 3)),
        ({**OMPI, **STEP}, LaunchInfo("mpi", 5, 8, 1, 4)),
        ({**PMIX, **STEP}, LaunchInfo("mpi", 3, 4, 1, 2)),
        (STEP, LaunchInfo("slurm", 3, 4, 1, 2)),
        ({name: value for name, value in STEP.items() if "STEP_T" not in name}, LaunchInfo("slurm", 3, 4, 1)),
        ({name: value for name, value in STEP.items() if "STEP_NUM" not in name}, LaunchInfo("slurm", 3, 4, 1, 2)),
        # neither a batch script nor a shell that is a step of one task is a rank
        (BATCH, LaunchInfo("none")),
        ({**BATCH, **SHELL}, LaunchInfo("none")),
    ):
        assert launch_info(environment) == expected, environment


def test_invalid_launcher_variables_are_refused() -> None:
    for environment, key, rule in (
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "prte"}, "PMIX_RANK", "world size"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prte", **BATCH}, "PMIX_RANK", "world size"),  # of the job, not the ranks
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK", "one less than the size"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK", "one less than the size"),
        ({"MV2_COMM_WORLD_SIZE": "2"}, "MV2_COMM_WORLD_SIZE", "would train alone"),
    ):
        with refused(InvalidRequest, key, rule=rule):
            launch_info(environment)


def test_init_world_refuses_by_argument_and_config_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher, name, value, key, legal in (
        ("none", "transport", "nccl", "comm.transport", "launch.device=cuda"),
        ("none", "transport", "glo", "comm.transport", "'gloo'"),
        ("none", "order", "statik", "comm.order", "'static'"),
        ("none", "device", "tpu", "launch.device", ""),
        ("none", "device", "cuda:x", "launch.device", ""),
        ("torchrun", "transport", "mpi", "comm.transport", ""),
        ("slurm", "transport", "mpi", "comm.transport", "launch.launcher=mpiexec"),
    ):
        monkeypatch.setattr("suite.comm.world.launch_info", lambda launcher=launcher: LaunchInfo(launcher))
        with refused(InvalidRequest, name):
            init_world(**{name: value})  # type: ignore[arg-type]
        with refused(InvalidRequest, key, legal=legal), in_config_keys():
            init_world(**{name: value})  # type: ignore[arg-type]
    for device in ("cpu", "cuda", "cuda:1"):
        check_transport("auto", "any", device=device, launcher="none")
