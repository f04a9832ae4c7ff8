"""Environment of ranks: nothing that a launcher set for the process that starts them."""

from __future__ import annotations

import pytest

from suite.comm.rendezvous.launcher_env import Start, started
from suite.runner.launch.launch_command import environment


@pytest.mark.parametrize(
    "told",
    [
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "x"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {
            "SLURM_PROCID": "1",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_STEPID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
        },
    ],
)
def test_a_rank_is_not_taken_for_the_process_that_starts_it(monkeypatch: pytest.MonkeyPatch, told: dict) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert started().size == 2
    found = environment(3, ["own"])
    assert started(found) == Start("none")
    assert not told.keys() & found.keys()


def test_a_users_settings_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash", "PRTE_MCA_x": "y", "RANKING": "1", "OMP_NUM_THREADS": "7"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    found = environment(3, ["own"])
    assert {name: found[name] for name in own} == own | {"OMP_NUM_THREADS": "3"}
    assert "own" in found["PYTHONPATH"].split(":")
