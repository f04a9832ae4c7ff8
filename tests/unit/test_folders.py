"""A folder or file that cannot be written is refused before the work, and a printed command works as it is printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from suite.cli.main import main
from suite.cli.run import run
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import check_file, check_folder
from suite.core.record import Outcome
from tests.support.refusals import refused

CHECKED = "executor=check system=axonn grid.inter=2"  # a run without ranks


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path through a file: not even root can make it."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "below"


COMMANDS = {  # command line, and the first function of its work
    f"run {CHECKED} reports={{}}": "suite.runner.executors.in_process.run_in_process",
    f"run {CHECKED} launch=slurm reports={{}}": "suite.runner.slurm._submit",
    f"sweep {CHECKED} seed=1,2 reports={{}}": "suite.runner.isolated.run_line",
    "reproduce scale=smoke reports={}": "suite.runner.interleave.measure",
    "nightly reports={}": "suite.regression.nightly.run.run",
    "compare a b --json {}": "suite.regression.record_sets.read",
    "artifact reports={}": "suite.artifact.build.make",
    "accuracy reports={}": "suite.simulate.validation.accuracy.score",
    "report reports={}": "suite.report.page.page.write_report",
}


@pytest.mark.parametrize(("line", "work"), COMMANDS.items(), ids=[line.split()[0] for line in COMMANDS])
def test_unwritable_place_is_refused_before_the_work(
    line: str, work: str, blocked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("the work began"))
    assert main(line.format(blocked).split()) == Exit.NOTHING
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("refused: ")
    assert str(blocked.parent) in message


def test_writable_folders_and_files_stay_unchanged(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b", "reports").is_dir()
    assert check_file(tmp_path / "c.json", "--json") == tmp_path / "c.json"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with refused(InvalidRequest):
        check_file(tmp_path, "--json")
    with refused(InvalidRequest, "reports"):
        check_folder(tmp_path / "a\0b", "reports")


def test_checkpoints_that_cannot_be_written_refuse_the_run(
    blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.runner.interleave.ActiveRun.__init__", lambda *_: pytest.fail("the run began"))
    for folder in (blocked, blocked.parent, Path("/proc/x")):
        (record,) = run([f"reports={tmp_path}", f"checkpoint.folder={folder}"])
        assert record.outcome is Outcome.UNSUPPORTED
        assert record.reason.startswith(f"checkpoint.folder={folder}: ")


def test_printed_command_makes_the_page_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "it's one, two"
    quoted = str(folder).replace("'", "\\'")
    assert main(["run", *CHECKED.split(), f"reports='{quoted}'"]) == Exit.OK
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" makes the page")]
    program, *words = shlex.split(line.removesuffix(" makes the page"))
    assert (program, main(words)) == ("suite", Exit.OK)
    assert capsys.readouterr().out == f"{folder / 'index.html'}\n"
    assert (folder / "index.html").is_file()
