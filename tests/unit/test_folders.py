"""A folder or file that cannot be written is refused before the work, and a printed command works as it is printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from suite.cli.run import main, run
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.files import check_file, check_folder
from suite.core.record import Outcome
from suite.engine.checkpoint.storage import unfinished_path
from suite.runner import provenance
from suite.runner.runs import expand
from suite.runner.tune import run_line
from tests.support.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ["executor=check", "system=axonn", "grid.inter=2"]  # a run without ranks
SHORT = ["model.shape.layers=2", "model.shape.hidden=32", "model.shape.sequence=16", "batch.size=8"]
SHORT += ["measure.discard_first=0", "measure.rounds=1", "measure.batches=2", "measure.eval_batches=0"]


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path through a file: not even root can make it."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "below"


class Worked(BaseException):
    """The work began before the folder was looked at."""


@pytest.mark.parametrize(
    ("module", "arguments", "work"),
    [
        ("suite.cli.run", [*CHECKED, "reports={}"], "suite.runner.executors.in_process.run_in_process"),
        ("suite.cli.sweep", [*CHECKED, "seed=1,2", "reports={}"], "suite.cli.hydra_sweep.run_isolated"),
        ("suite.cli.reproduce", ["scale=smoke", "reports={}"], "suite.runner.interleave.measure"),
        ("suite.cli.tune", ["machine=summit", "reports={}"], "suite.runner.tune.list_candidates"),
        (
            "suite.cli.profile_split",
            ["model=vgg_narrow", "data=digits", "reports={}"],
            "suite.engine.profile.profile_layers",
        ),
        ("suite.cli.nightly", ["reports={}"], "suite.regression.nightly.run.run"),
        ("suite.cli.export_mask", ["checkpoint", "{}"], "suite.engine.checkpoint.restore.load_mask"),
        ("suite.cli.compare", ["a", "b", "--json", "{}"], "suite.regression.record_sets.read"),
        (
            "suite.cli.draw",
            ["system=sparsity_aware", "grid.data=2", "draw.plan={}/p"],
            "suite.gnn.partition_data.graph_of",
        ),
        ("suite.cli.artifact", ["reports={}"], "suite.artifact.build.make"),
        ("suite.cli.league", ["reports={}"], "suite.papers.public.write_league.score_cells"),
        ("suite.cli.report", ["reports={}"], "suite.report.page.page.write_report"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(
    module: str,
    arguments: list[str],
    work: str,
    blocked: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def works(*_: object, **__: object) -> None:
        raise Worked

    monkeypatch.setattr(work, works)
    assert import_module(module).main([argument.format(blocked) for argument in arguments]) == Exit.NOTHING
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("refused: ")
    assert str(blocked.parent) in message


def test_writable_folders_and_files_stay_unchanged(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b", "reports").is_dir()
    assert check_file(tmp_path / "c.json", "--json") == tmp_path / "c.json"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with refused(InvalidRequest, subject="is a folder", rule="a file"):
        check_file(tmp_path, "--json")
    with refused(InvalidRequest, "reports"):
        check_folder(tmp_path / "a\0b", "reports")


def test_checkpoints_that_cannot_be_written_refuse_the_run(
    blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*_: object) -> None:
        raise Worked

    monkeypatch.setattr("suite.runner.interleave.ActiveRun.__init__", starts)
    for folder in (blocked, blocked.parent, Path("/proc/x")):
        (record,) = run([*SHORT, f"reports={tmp_path}", f"checkpoint.folder={folder}"])
        assert record.outcome is Outcome.UNSUPPORTED
        assert record.reason.startswith(f"checkpoint.folder={folder}: ")


@pytest.mark.exhaustive
def test_a_save_that_fails_is_the_outcome_of_the_run(tmp_path: Path) -> None:
    command = [*SHORT, f"reports={tmp_path}", f"checkpoint.folder={tmp_path / 'saves'}", "checkpoint.every=1"]
    (run_,) = expand(command)
    folder = tmp_path / "saves" / provenance.key(run_)
    folder.mkdir(parents=True)
    unfinished_path(folder, 1).touch()  # a file where the first save writes its folder
    (record,) = run(command)
    assert record.outcome is Outcome.FAILED
    assert "Error" in record.reason.splitlines()[-1]
    assert str(tmp_path / "saves") in record.reason


def executed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A printed command line, by the interpreter of these tests."""
    program, *words = shlex.split(line)
    assert program == "suite"
    command = [sys.executable, "-m", "suite", *words]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("name", ["it's one, two"])
def test_the_printed_command_makes_the_page_of_the_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    quoted = str(folder).replace("'", "\\'")
    assert main([*CHECKED, f"reports='{quoted}'"]) == Exit.OK
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" makes the page")]
    done = executed(line.removesuffix(" makes the page"), tmp_path)
    assert done.stdout == f"{folder / 'index.html'}\n", done.stderr
    assert (folder / "index.html").is_file()


def test_tuned_plan_runs_again_with_the_same_command_line() -> None:
    typed = ["system=axonn", "batch.size=4", "reports=/tmp/a b", "launch.python_path=[x]", "machine=local"]
    line = run_line(Path("/tmp/a b/tuned/p.yaml"), typed)
    assert shlex.split(line)[2:] == ["@/tmp/a b/tuned/p.yaml", "reports=/tmp/a b", "launch.python_path=[x]"]
