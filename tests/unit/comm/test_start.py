"""Rank and world size from the environment of each launcher."""

from __future__ import annotations

from typing import Any

import pytest

from suite.comm import Start, check_transport, here, started
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.keys import in_config_keys

# what Slurm 22.05 gives a batch script of four tasks on two nodes, and a task of a step that it starts
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
    ("told", "expected"),
    [
        ({}, Start("none", 0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Start("torchrun", 3, 4, 1, 2)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Start("torchrun", 3, 4, 3)),
        (OMPI, Start("mpi", 5, 8, 1, 4)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
            Start("mpi", 1, 2, 0, 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", **STEP}, Start("mpi", 1, 2, 1)),  # srun --mpi=pmi2
        # half a word is none: a rank without a size is a variable of somebody else's
        ({"RANK": "3"}, Start("none", 0, 1, 0)),
        ({"PMIX_RANK": "3"}, Start("none", 0, 1, 0)),
        # whoever starts ranks of its own inside a job of another is nearer to them
        ({"RANK": "0", "WORLD_SIZE": "2", **OMPI}, Start("torchrun", 0, 2, 0)),
        ({**OMPI, **STEP}, Start("mpi", 5, 8, 1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", **STEP}, Start("torchrun", 0, 2, 0)),
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.0", **STEP}, Start("mpi", 3, 4, 1, 2)),
        (STEP, Start("slurm", 3, 4, 1, 2)),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, Start("slurm", 3, 4, 1, 1)),
        ({name: value for name, value in STEP.items() if "STEP_T" not in name}, Start("slurm", 3, 4, 1)),
        ({name: value for name, value in STEP.items() if "STEP_NUM" not in name}, Start("slurm", 3, 4, 1, 2)),
        # a batch script has a rank's variables and is none; nor is a shell that is a step of one task
        (BATCH, Start("none")),
        ({**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, Start("none")),
    ],
)
def test_started(told: dict[str, str], expected: Start) -> None:
    assert started(told) == expected


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "prte"}, "PMIX_RANK=3 and no number of ranks"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prte", **BATCH}, "no number of ranks"),  # the job's tasks are not its
        ({"RANK": "four", "WORLD_SIZE": "4"}, "RANK=four; rule: a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 of WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 of WORLD_SIZE=0"),
        ({**STEP, "SLURM_LOCALID": ""}, "SLURM_LOCALID=;"),
    ],
)
def test_what_no_rank_can_be_is_refused(told: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        started(told)


def test_the_launcher_that_is_named_is_listened_to() -> None:
    both = {"RANK": "0", "WORLD_SIZE": "2", "PMIX_RANK": "3", **STEP}
    assert started(both, launcher="slurm") == Start("slurm", 3, 4, 1, 2)
    assert started(both, launcher="mpi") == Start("mpi", 3, 4, 1, 2)
    assert started(both, launcher="none") == Start("none")
    with pytest.raises(InvalidRequest, match="no word of slurm"):
        started(BATCH, launcher="slurm")
    with pytest.raises(UnknownName, match="did you mean 'slurm'"):
        started(STEP, launcher="slrm")


def test_transports_that_cannot_be_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="did you mean 'gloo'"):
        here(transport="glo")
    with pytest.raises(UnknownName, match="static"):
        here(order="statik")
    with pytest.raises(InvalidRequest, match="NCCL moves CUDA memory"):
        here(transport="nccl")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidRequest, match="under torchrun"):
        here(transport="mpi")
    monkeypatch.delenv("RANK")
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match="under slurm"):
        here(transport="mpi")


@pytest.mark.parametrize(
    ("launcher", "told", "argument", "key"),
    [
        ("none", {"transport": "nccl"}, 'transport="nccl" on', "comm.transport=nccl on"),
        ("none", {"transport": "nccl"}, 'legal: device="cuda"', "legal: launch.device=cuda"),
        ("none", {"transport": "glo"}, "no transport named", "no comm.transport named"),
        ("none", {"order": "statik"}, "no order named", "no comm.order named"),
        ("none", {"device": "tpu"}, "no device named", "no launch.device named"),
        ("none", {"device": "cuda:x"}, "no device named", "no launch.device named"),
        ("none", {"inline": 1}, "inline=1;", "comm.eager_bytes=1;"),
        ("none", {"inline": 1000.5}, "legal: inline=", "legal: comm.eager_bytes="),
        ("torchrun", {"transport": "mpi"}, 'transport="mpi" under', "comm.transport=mpi under"),
        ("torchrun", {"transport": "mpi"}, "legal: mpiexec", "legal: launch.launcher=mpiexec"),
        ("slurm", {"transport": "mpi"}, "srun --mpi=", "launch.mpi="),
    ],
)
def test_here_names_its_arguments_and_a_config_its_keys(
    monkeypatch: pytest.MonkeyPatch, launcher: str, told: dict[str, Any], argument: str, key: str
) -> None:
    monkeypatch.setattr("suite.comm.started", lambda: Start(launcher))
    with pytest.raises(InvalidRequest) as caught:
        here(**told)
    said = str(caught.value)
    assert argument in said
    assert key not in said
    with pytest.raises(InvalidRequest) as caught, in_config_keys():
        here(**told)
    assert key in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_here_takes_a_device_with_a_number(device: str) -> None:
    check_transport("auto", "any", device=device, launcher="none")
