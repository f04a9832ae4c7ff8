"""Rank and world size from the environment of each launcher, and the choice of a transport."""

from __future__ import annotations

from typing import Any

import pytest

from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.comm.world import check_transport, init_world
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.keys import in_config_keys
from tests.support.refusals import refused

# variables of Slurm 22.05 in a batch script of four tasks on two nodes, and in a task of its step
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
STEP = {
    **BATCH,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
    "PMIX_NAMESPACE": "prterun-host-1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, LaunchInfo("none", 0, 1, 0)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            LaunchInfo("torchrun", 3, 4, 1, 2),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, LaunchInfo("torchrun", 3, 4, 3)),
        (OMPI, LaunchInfo("mpi", 5, 8, 1, 4)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
            LaunchInfo("mpi", 1, 2, 0, 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", **STEP}, LaunchInfo("mpi", 1, 2, 1)),  # srun --mpi=pmi2
        # half a word is none: a rank without a size is a variable of somebody else's
        ({"RANK": "3"}, LaunchInfo("none", 0, 1, 0)),
        ({"PMIX_RANK": "3"}, LaunchInfo("none", 0, 1, 0)),
        # the innermost launcher wins
        ({"RANK": "0", "WORLD_SIZE": "2", **OMPI}, LaunchInfo("torchrun", 0, 2, 0)),
        ({**OMPI, **STEP}, LaunchInfo("mpi", 5, 8, 1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **STEP}, LaunchInfo("torchrun", 0, 2, 0)),
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.0", **STEP}, LaunchInfo("mpi", 3, 4, 1, 2)),
        (STEP, LaunchInfo("slurm", 3, 4, 1, 2)),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, LaunchInfo("slurm", 3, 4, 1, 1)),
        ({name: value for name, value in STEP.items() if "STEP_T" not in name}, LaunchInfo("slurm", 3, 4, 1)),
        ({name: value for name, value in STEP.items() if "STEP_NUM" not in name}, LaunchInfo("slurm", 3, 4, 1, 2)),
        # neither a batch script nor a shell that is a step of one task is a rank
        (BATCH, LaunchInfo("none")),
        ({**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, LaunchInfo("none")),
    ],
)
def test_launch_info_reads_each_launcher(environment: dict[str, str], expected: LaunchInfo) -> None:
    assert launch_info(environment) == expected


@pytest.mark.parametrize(
    ("environment", "key", "rule"),
    [
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "prte"}, "PMIX_RANK", "world size"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prte", **BATCH}, "PMIX_RANK", "world size"),  # of the job, not the ranks
        ({"RANK": "four", "WORLD_SIZE": "4"}, "RANK", "a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK", "one less than the size"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK", "one less than the size"),
        ({**STEP, "SLURM_LOCALID": ""}, "SLURM_LOCALID", "a whole number"),
    ],
)
def test_invalid_launcher_variables_are_refused(environment: dict[str, str], key: str, rule: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        launch_info(environment)
    assert caught.value.key == key
    assert rule in caught.value.rule


def test_a_named_launcher_is_read_alone() -> None:
    both = {"RANK": "0", "WORLD_SIZE": "2", "PMIX_RANK": "3", **STEP}
    assert launch_info(both, launcher="slurm") == LaunchInfo("slurm", 3, 4, 1, 2)
    assert launch_info(both, launcher="mpi") == LaunchInfo("mpi", 3, 4, 1, 2)
    assert launch_info(both, launcher="none") == LaunchInfo("none")
    with refused(InvalidRequest, subject="slurm", rule="a launcher sets the rank and the world size"):
        launch_info(BATCH, launcher="slurm")
    with pytest.raises(UnknownName) as caught:
        launch_info(STEP, launcher="slrm")
    assert "'slurm'" in caught.value.legal


@pytest.mark.parametrize(
    ("launcher", "arguments", "name", "key"),
    [
        ("none", {"transport": "nccl"}, "transport", "comm.transport"),
        ("none", {"transport": "glo"}, "transport", "comm.transport"),
        ("none", {"order": "statik"}, "order", "comm.order"),
        ("none", {"device": "tpu"}, "device", "launch.device"),
        ("none", {"device": "cuda:x"}, "device", "launch.device"),
        ("none", {"eager_bytes": 1}, "eager_bytes", "comm.eager_bytes"),
        ("none", {"eager_bytes": 1000.5}, "eager_bytes", "comm.eager_bytes"),
        ("torchrun", {"transport": "mpi"}, "transport", "comm.transport"),
        ("slurm", {"transport": "mpi"}, "transport", "comm.transport"),
    ],
)
def test_init_world_refuses_by_argument_and_config_key(
    monkeypatch: pytest.MonkeyPatch, launcher: str, arguments: dict[str, Any], name: str, key: str
) -> None:
    monkeypatch.setattr("suite.comm.world.launch_info", lambda: LaunchInfo(launcher))
    with pytest.raises(InvalidRequest) as caught:
        init_world(**arguments)
    assert caught.value.key == name
    with pytest.raises(InvalidRequest) as caught, in_config_keys():
        init_world(**arguments)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("launcher", "transport", "legal"),
    [("none", "nccl", "launch.device=cuda"), ("slurm", "mpi", "launch.launcher=mpiexec"), ("none", "glo", "'gloo'")],
)
def test_init_world_names_a_legal_setting(
    monkeypatch: pytest.MonkeyPatch, launcher: str, transport: str, legal: str
) -> None:
    monkeypatch.setattr("suite.comm.world.launch_info", lambda: LaunchInfo(launcher))
    with pytest.raises(InvalidRequest) as caught, in_config_keys():
        init_world(transport=transport)
    assert legal in caught.value.legal


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_check_transport_accepts_a_device_with_a_number(device: str) -> None:
    check_transport("auto", "any", device=device, launcher="none")
