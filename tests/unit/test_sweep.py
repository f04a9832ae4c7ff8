"""Exit status of a sweep, and reports of dead jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.cli.hydra_sweep import combined_status, ending_reason, plan_command, sweep
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome


def test_exit_status_of_several_jobs() -> None:
    for codes, expected in (
        ([], Exit.NOTHING),
        ([0, 0], Exit.OK),
        ([2, 2], Exit.NOTHING),
        ([0, 2], Exit.SOME_FAILED),
        ([0, 1], Exit.SOME_FAILED),
        ([1, 1], Exit.SOME_FAILED),
        ([0, 3, 3], Exit.STOPPED),
        ([1, 2, 3], Exit.STOPPED),
    ):
        assert combined_status(codes) == expected, codes


def test_status_of_a_dead_job_decides_its_records() -> None:
    for status, outcome, words in (
        (-9, Outcome.LOST_RANK, "SIGKILL"),
        (137, Outcome.LOST_RANK, "SIGKILL"),  # the status that a shell reports
        (-11, Outcome.LOST_RANK, "SIGSEGV"),
        (-15, Outcome.CANCELLED, "SIGTERM"),
        (143, Outcome.CANCELLED, "SIGTERM"),
        (130, Outcome.CANCELLED, "SIGINT"),
        (77, Outcome.FAILED, "77"),
        (255, Outcome.FAILED, "255"),
    ):
        ending, reason = ending_reason(status)
        assert ending is outcome, status
        assert words in reason


def test_arguments_that_hydra_does_not_take_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["suite"])
    with pytest.raises(InvalidRequest):
        sweep(["-m", "--nothing-of-hydras", "system=axonn,gpipe", f"reports={tmp_path}"])


@pytest.mark.parametrize("key", ["reports", "checkpoint.folder"])
def test_dry_run_refuses_a_read_only_folder(key: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, would_run in (("/proc/nobody", 0), (tmp_path / "file" / "below", 0), (tmp_path / "a" / "b", 1)):
        plan = plan_command([f"reports={tmp_path}/reports", "system=axonn", f"{key}={folder}"])
        assert (plan.would_run, plan.refused) == (would_run, 1 - would_run)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made"
