"""Exit status of a sweep, and reports of dead jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.cli.hydra_sweep import DryRun, combined_status, dry_run_summary, ending_reason, plan_command, sweep
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], Exit.NOTHING),
        ([0, 0], Exit.OK),
        ([2, 2], Exit.NOTHING),
        ([0, 2], Exit.SOME_FAILED),
        ([0, 1], Exit.SOME_FAILED),
        ([1, 1], Exit.SOME_FAILED),
        ([0, 3, 3], Exit.STOPPED),
        ([1, 2, 3], Exit.STOPPED),
    ],
)
def test_some_failed_is_not_nothing_measured(codes: list[int], expected: Exit) -> None:
    assert combined_status(codes) == expected


@pytest.mark.parametrize(
    ("status", "outcome", "words"),
    [
        (-9, Outcome.LOST_RANK, "SIGKILL (the kernel's out-of-memory killer sends it)"),
        (137, Outcome.LOST_RANK, "SIGKILL"),  # as a shell tells it
        (-11, Outcome.LOST_RANK, "SIGSEGV"),
        (-15, Outcome.CANCELLED, "SIGTERM"),
        (143, Outcome.CANCELLED, "SIGTERM"),
        (130, Outcome.CANCELLED, "SIGINT"),
        (77, Outcome.FAILED, "status 77"),
        (255, Outcome.FAILED, "status 255"),
    ],
)
def test_how_a_job_died_is_said(status: int, outcome: Outcome, words: str) -> None:
    ending, reason = ending_reason(status)
    assert ending is outcome
    assert words in reason


def test_arguments_that_hydra_does_not_take_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["suite"])
    with pytest.raises(InvalidRequest):
        sweep(["-m", "--nothing-of-hydras", "system=axonn,gpipe", f"reports={tmp_path}"])


def test_dry_run_of_one_run_uses_the_singular() -> None:
    assert dry_run_summary([DryRun((), would_run=1)]).startswith("dry run of 1 run: ")
    assert "1 has a record" in dry_run_summary([DryRun((), recorded=1)])


@pytest.mark.parametrize("key", ["reports", "checkpoint.folder"])
@pytest.mark.parametrize("where", ["/proc/nobody", "FILE/below"])
def test_dry_run_refuses_a_read_only_folder(key: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = where.replace("FILE", str(tmp_path / "file"))
    assert plan_command([f"reports={tmp_path}/reports", "system=axonn", f"{key}={folder}"]).refused == 1
    assert plan_command([f"reports={tmp_path}/reports", "system=axonn", f"{key}={tmp_path}/a/b"]).would_run == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made"
