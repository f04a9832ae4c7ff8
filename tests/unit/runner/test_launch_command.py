"""Environment of ranks: no variable that a launcher set for the process that starts them."""

from __future__ import annotations

import pytest

from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.runner.launch.launch_command import rank_environment

LAUNCHERS = (  # variables of launchers
    {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "x"},
    {"PMI_RANK": "1", "PMI_SIZE": "2"},
    dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEPID"), "1")
    | {"SLURM_STEP_NUM_TASKS": "2"},
)


def test_variables_of_an_outer_launcher_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in LAUNCHERS:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert launch_info().size == 2
            environment = rank_environment(3, ["own"])
        assert launch_info(environment) == LaunchInfo("none")
        assert not variables.keys() & environment.keys()


def test_settings_of_the_user_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash", "PRTE_MCA_x": "y", "RANKING": "1", "OMP_NUM_THREADS": "7"}
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    environment = rank_environment(3, ["own"])
    assert {name: environment[name] for name in user} == user | {"OMP_NUM_THREADS": "3"}
    assert "own" in environment["PYTHONPATH"].split(":")
