"""Slurm sweeps against fake Slurm programs: submissions, refusals, waiting, and records of ended jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.core.errors import MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner.executors import in_process
from suite.runner.provenance import circumstances
from suite.runner.runs import Run, expand
from suite.runner.slurm import job_state, submit, wait
from suite.runner.slurm.job_state import JobState
from suite.runner.store import Store, key_of

SBATCH = """
if grep -q 'partition=nowhere' "$2"; then
  echo 'sbatch: error: invalid partition specified: nowhere' >&2
  exit 1
fi
echo "$2" >> $(dirname $0)/submitted
echo '7;cluster'
"""
SCONTROL = "JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState={} Reason=None ExitCode=0:0"


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Install Slurm programs that report one state for every job. Returns the file that lists submitted scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(state: str) -> Path:
        scripts = {"sbatch": SBATCH, "scontrol": f"echo '{SCONTROL.format(state)}'", "scancel": "", "sacct": "exit 1"}
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder / "submitted"

    return install


def sweep(tmp_path: Path, *overrides: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *overrides]


def key(run: Run) -> str:
    return key_of(run.settings, circumstances(run.outline))


def stored_records(tmp_path: Path) -> list[Record]:
    files = sorted((tmp_path / "reports" / "records").glob("*.json"))
    return [Record.read(file) for file in files]


def test_rejected_array_is_unsupported_and_others_continue(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    fake_slurm("COMPLETED")
    lines: list[str] = []
    jobs = [sweep(tmp_path, "tag=no", "launch.partition=nowhere"), sweep(tmp_path, "tag=yes")]
    finished = submit.submit_sweep(jobs, report=lines.append)
    assert [(job.job_id, job.state, job.status) for job in finished] == [
        ("", "refused", Exit.NOTHING),
        ("7_0", "COMPLETED", Exit.NOTHING),
    ]
    records = {record.config["tag"]: record for record in stored_records(tmp_path)}
    assert (records["no"].outcome, records["yes"].outcome) == (Outcome.UNSUPPORTED, Outcome.FAILED)
    assert "invalid partition specified: nowhere" in records["no"].reason
    assert any("invalid partition" in line for line in lines)


TOO_MANY_STAGES = ["executor=real", "grid.inter=64"]  # the model has fewer layers


def test_refused_run_requests_no_nodes(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    submissions = fake_slurm("COMPLETED")
    (small,) = expand(sweep(tmp_path, "executor=real", "grid.inter=2", "launch.tasks_per_node=2"))
    (large,) = expand(sweep(tmp_path, *TOO_MANY_STAGES, "launch.tasks_per_node=2"))
    assert large.refusal is not None
    assert submit._resource_request([small, large]).options["nodes"] == 1
    may_run_on_node = replace(large, refusal=MissingDependency("a package", "a node may have it"))
    assert submit._resource_request([small, may_run_on_node]).options["nodes"] == 32
    (job,) = submit.submit_sweep([sweep(tmp_path, *TOO_MANY_STAGES)], report=lambda line: None)
    assert (job.state, job.status) == ("refused", Exit.NOTHING)
    assert not submissions.exists()
    (record,) = stored_records(tmp_path)
    assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, str(large.refusal))


def test_ranks_without_a_place_leave_a_record(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    submissions = fake_slurm("COMPLETED")
    for launcher in ("srun", "mpiexec"):  # the run is refused for srun, the job for mpiexec
        launch = ["launch.nodes=1", "launch.tasks_per_node=2", f"launch.launcher={launcher}"]
        folder = tmp_path / launcher
        (job,) = submit.submit_sweep(
            [sweep(folder, "executor=real", "grid.inter=4", *launch)], report=lambda line: None
        )
        assert job.status == Exit.NOTHING
        assert not submissions.exists()
        (record,) = stored_records(folder)
        assert record.outcome is Outcome.UNSUPPORTED
        assert "4 ranks on launch.nodes=1" in record.reason


def test_record_of_a_killed_job_replaces_no_good_record(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    fake_slurm("OUT_OF_MEMORY")
    (run,) = expand(sweep(tmp_path))
    store = Store(tmp_path / "reports")
    for earlier, outcome in ((Outcome.OK, Outcome.OK), (Outcome.TIMEOUT, Outcome.OOM)):
        store.write(in_process.unfinished_record(run, key(run), earlier, "an earlier run"))
        lines: list[str] = []
        (job,) = submit.submit_sweep([sweep(tmp_path, "rerun=all")], report=lines.append)
        assert (job.state, job.status) == ("OUT_OF_MEMORY", Exit.NOTHING)
        record = store.find(key(run))
        assert record is not None
        assert (record.outcome, record.reason == "an earlier run") == (outcome, earlier is Outcome.OK)
        assert any("memory limit" in line and "earlier run" in line for line in lines) is (earlier is Outcome.OK)


def test_exit_status_of_a_job_follows_its_records(tmp_path: Path) -> None:
    for state, own_status, outcome, overrides, status in (
        ("COMPLETED", None, Outcome.OK, [], Exit.OK),
        ("OUT_OF_MEMORY", None, Outcome.OK, [], Exit.SOME_FAILED),  # after its last record
        ("CANCELLED", Exit.OK, Outcome.OK, [], Exit.OK),  # it wrote its status before
        ("FAILED", None, Outcome.FAILED, [], Exit.NOTHING),
        ("FAILED", None, Outcome.FAILED, ["on_error=stop"], Exit.STOPPED),
    ):
        runs = expand(sweep(tmp_path, *overrides))
        record = in_process.unfinished_record(runs[0], key(runs[0]), outcome, "written by the job")
        Store(tmp_path / "reports").write(record)
        array = SimpleNamespace(
            jobs=[SimpleNamespace(command=(), runs=runs)],
            job_id="7",
            name="suite-a-0",
            stamps={},
            rejection=None,
            exit_status=lambda task, own_status=own_status: own_status,
        )
        (finished,) = submit._finish([array], {("7", 0): JobState(state)}, lambda line: None)
        assert finished.status == status, (state, own_status)
        assert [record.outcome for record in stored_records(tmp_path)] == [outcome]


class SimulatedController:
    """A Slurm controller whose answer about one job depends on a simulated clock.

    `answers` maps seconds to the output of scontrol. The job writes its exit status after `status_after` seconds.
    """

    def __init__(self, answers: Callable[[float], str | None], status_after: float = float("inf")) -> None:
        self.now, self.answers, self.status_after = 0.0, answers, status_after
        self.lines: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def exit_status(self, task: int) -> int | None:
        return 0 if self.now >= self.status_after else None

    def wait(self, monkeypatch: pytest.MonkeyPatch) -> JobState:
        """Wait for the job; its last state."""
        monkeypatch.setattr(wait, "time", self)
        monkeypatch.setattr(job_state, "query_slurm", lambda *command: self.answers(self.now))
        array = SimpleNamespace(job_id="7", jobs=[None], exit_status=self.exit_status)
        return wait.wait_for_jobs([array], self.lines.append, limit=3600)["7", 0]


RUNNING, COMPLETED = SCONTROL.format("RUNNING"), SCONTROL.format("COMPLETED")


def test_controller_that_does_not_answer_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = SimulatedController(lambda now: RUNNING if now < 5 else None if now < 600 else COMPLETED)
    assert controller.wait(monkeypatch).name == "COMPLETED"
    assert controller.now >= 600
    assert any("Slurm does not answer" in line for line in controller.lines)
    assert not any("1 ended" in line for line in controller.lines[:-1])


def test_job_unknown_to_slurm_has_ended_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = SimulatedController(lambda now: RUNNING if now < 5 else "")
    assert controller.wait(monkeypatch).name == "RUNNING"
    assert wait.GONE_AFTER <= controller.now - 5 <= wait.GONE_AFTER + 20


def test_job_unknown_for_less_than_a_minute_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for answers in (
        lambda now: "" if now < 30 else COMPLETED,  # not known yet
        lambda now: "" if now < 40 or 60 < now < 100 else RUNNING if now < 120 else COMPLETED,  # known in between
    ):
        assert SimulatedController(answers).wait(monkeypatch).name == "COMPLETED"


def test_job_that_wrote_its_status_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("", None):
        controller = SimulatedController(lambda now, answer=answer: answer, status_after=10.0)
        controller.wait(monkeypatch)
        assert 10 <= controller.now < 20


def test_failed_query_differs_from_an_unknown_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, answer in (
        ("echo JobId=7", "JobId=7\n"),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", ""),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", None),
    ):
        assert job_state.query_slurm("sh", "-c", program) == answer
    monkeypatch.setattr(job_state, "_QUERY_TIMEOUT", 0.2)
    assert job_state.query_slurm("sleep", "5") is None
    assert job_state.query_slurm("no-such-program") is None
