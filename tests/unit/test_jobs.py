"""Sweeps whose jobs fail: other jobs run, every run has a record, and a repeat makes exactly the missing runs."""

from __future__ import annotations

import fcntl
import io
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.cli.lines import plan_line
from suite.cli.main import main
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner.executors import in_process
from suite.runner.interleave import measure
from suite.runner.isolated import ending_reason
from suite.runner.launch.signals import Interrupted
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.runner.store import Store

ROOT = Path(__file__).parents[2]
FATES = {"well": Outcome.OK, "killed": Outcome.LOST_RANK}  # records of jobs


def words(folder: Path, *more: str) -> list[str]:
    """Overrides of a run that ends as `executor.how` says."""
    plugins = f"launch.python_path=[{ROOT / 'tests' / 'plugins'}]"
    return [plugins, "executor=deadly", f"executor.log={folder / 'log'}", f"reports={folder / 'reports'}", *more]


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A command in this process; its jobs are processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return lambda command, *more: main([command, *words(tmp_path, *more)])


def outcomes(folder: Path) -> dict[str, Outcome]:
    """Outcomes of all records, by what their job did."""
    records = [Record.read(file) for file in (folder / "reports" / "records").glob("*.json")]
    assert len(records) == len({record.config["executor"]["how"] for record in records})
    return {record.config["executor"]["how"]: record.outcome for record in records}


def begun(folder: Path) -> Counter[str]:
    """How often each run was begun since the last call."""
    log = folder / "log"
    lines = Counter(log.read_text().split()) if log.exists() else Counter()
    log.unlink(missing_ok=True)
    return lines


@pytest.mark.slow("a sweep of jobs, one of them killed")
def test_killed_job_ends_alone_and_dry_sweep_counts_what_is_missing(
    tmp_path: Path, suite: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert suite("sweep", f"executor.how={','.join(FATES)}") == Exit.SOME_FAILED
    assert "Traceback" not in capfd.readouterr().err
    assert outcomes(tmp_path) == FATES
    assert begun(tmp_path) == Counter([*FATES])
    assert any("SIGKILL" in file.read_text() for file in (tmp_path / "reports" / "records").glob("*.json"))
    (tmp_path / "asked.yaml").write_text(f"['executor.how={','.join(FATES)},raises']")
    asked = f"@{tmp_path / 'asked.yaml'}"
    for folder, status, counts in (
        ("checkpoint.folder=null,/proc/x", Exit.SOME_FAILED, "6 runs: 1 would run, 4 have a record, 1 refused"),
        ("checkpoint.folder=/proc/x seed=1", Exit.NOTHING, "3 runs: 0 would run, 0 have a record, 3 refused"),
    ):
        assert suite("sweep", "--dry-run", asked, *folder.split()) == status
        assert counts in capfd.readouterr().out.splitlines()[-1]
    assert not begun(tmp_path)
    assert len(outcomes(tmp_path)) == len(FATES)


@pytest.mark.exhaustive
def test_sweep_stops_at_the_first_failure_with_on_error_stop(tmp_path: Path, suite: Callable[..., int]) -> None:
    assert suite("sweep", "executor.how=well,raises,slow", "on_error=stop") == Exit.STOPPED
    assert outcomes(tmp_path) == {"well": Outcome.OK, "raises": Outcome.FAILED}


@pytest.mark.parametrize("written", [True, False])
def test_rerun_waits_for_a_lock_and_repeats_what_its_holder_has_not_made(written: bool, tmp_path: Path) -> None:
    (run,) = expand(words(tmp_path, "executor.how=well", "rerun=all"))
    store = Store(tmp_path / "reports")
    store.write(in_process.record_of(run, (Outcome.FAILED, "an earlier run")))
    (tmp_path / "reports" / "locks").mkdir()
    lock = (tmp_path / "reports" / "locks" / f"{run.key}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    held = in_process.record_of(run, (Outcome.OK, "made by the holder"))

    class Holder(Progress):
        """The holder ends as soon as the other command waits."""

        def show(self, title: str) -> None:
            if "waiting for" in title:
                if written:
                    store.write(held)
                lock.close()

    (record,) = measure([run], Holder(1.0, io.StringIO()))
    assert record.outcome is Outcome.OK
    assert (record.reason == held.reason) is written
    assert begun(tmp_path) == Counter([] if written else ["well"])


def test_cancelled_run_keeps_an_earlier_good_record(
    tmp_path: Path, suite: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert suite("run", "executor.how=well") == Exit.OK

    def interrupted(*_: object) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(in_process, "run_in_process", interrupted)
    for how in ("well", "slow"):
        assert suite("run", f"executor.how={how}", "rerun=all") == 128 + signal.SIGTERM
    assert outcomes(tmp_path) == {"well": Outcome.OK, "slow": Outcome.CANCELLED}


# -- exit status of a sweep, and reports of dead jobs --


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


def test_illegal_value_refuses_the_sweep_before_any_run(
    tmp_path: Path, suite: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    for word in ("grid.inter=1,0", "launch=local,null", "executor.how=well,[1,"):
        assert suite("sweep", "executor.how=well", word) == Exit.NOTHING
        assert len(capfd.readouterr().err.splitlines()) == 1
    assert not begun(tmp_path)


@pytest.mark.parametrize("key", ["reports", "checkpoint.folder"])
def test_dry_run_refuses_a_read_only_folder(key: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, would_run in (("/proc/nobody", 0), (tmp_path / "file" / "below", 0), (tmp_path / "a" / "b", 1)):
        counts = plan_line([f"reports={tmp_path}/reports", "system=axonn", f"{key}={folder}"])
        assert counts == ({"would run": 1} if would_run else {"refused": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made"
