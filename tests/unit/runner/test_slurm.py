"""Jobs of Slurm: scripts, submissions, waiting, and records for jobs that left none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner import slurm
from suite.runner.executors import in_process
from suite.runner.runs import Run, expand
from suite.runner.store import Store
from tests.support.refusals import refused

SBATCH = """
if grep -q 'partition=nowhere' "$1"; then
  echo 'sbatch: error: invalid partition specified: nowhere' >&2
  exit 1
fi
echo "$1" >> $(dirname $0)/submitted
echo 'Submitted batch job 7'
"""


def sweep(tmp_path: Path, *overrides: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *overrides]


def stored_records(tmp_path: Path) -> list[Record]:
    return [Record.read(file) for file in sorted((tmp_path / "reports" / "records").glob("*.json"))]


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Install Slurm programs that report one state for every job. Returns the file that lists submitted scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(state: str) -> Path:
        squeue = f"for job in 7 7_0 7_1; do echo $job {state}; done"
        scripts = {"sbatch": SBATCH, "squeue": squeue, "scancel": "", "srun": "", "sacct": "exit 1"}
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder / "submitted"

    return install


def test_dry_run_prints_scripts_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # a machine without Slurm
    lines: list[str] = []
    launch = ["launch.partition=gpu", "launch.time=90", "launch.setup=[module load cuda]"]
    launch.append("launch.extra={mem: 8G, exclusive: true, mail_type: null}")
    larger = sweep(tmp_path, "launch.nodes=2", "executor=real", "grid.inter=4")
    jobs = [sweep(tmp_path, *launch), sweep(tmp_path, *launch, "tag=b"), larger]
    assert slurm.submit(jobs, dry_run=True, report=lines.append) == [Exit.OK] * 3, lines
    first, second = lines  # jobs with one resource request form one array
    options = "--array=0-1%2 --partition=gpu --time=90 --mem=8G --exclusive --nodes=1 --ntasks-per-node=1"
    assert [option for option in options.split() if f"#SBATCH {option}\n" not in first] == []
    assert [option for option in ("--nodes=2", "--ntasks-per-node=2") if f"#SBATCH {option}\n" not in second] == []
    assert "#SBATCH --mail" not in first
    assert "module load cuda\n" in first
    assert "tag=b launch.submit=false" in first
    assert not (tmp_path / "reports").exists()
    with pytest.raises(MissingDependency, match="sbatch"):
        slurm.submit(jobs, report=lines.append)
    for own in ("array: 1-3", "time: 5", "ntasks-per-node: 2", "output: x"):  # of the suite itself
        with refused(InvalidRequest, "launch.extra", rule="sets itself"):
            slurm._request(expand(["launch=slurm", f"launch.extra={{{own}}}"]))


def recorded(run: Run, outcome: Outcome = Outcome.OK, reason: str = "", **circumstances: object) -> Record:
    record = in_process.record_of(run, (outcome, reason))
    return replace(record, key="0" * 20, provenance={**record.provenance, **circumstances})


def test_runs_recorded_on_a_node_are_not_submitted_again(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    submissions, (run,) = fake_slurm("COMPLETED"), expand(sweep(tmp_path))
    Store(tmp_path / "reports").write(recorded(run, machine={"cores": 4096}))
    lines: list[str] = []
    assert slurm.submit([sweep(tmp_path)], report=lines.append) == [Exit.OK]
    assert not submissions.exists(), "the machine of a node may differ from the submitting one"
    for overrides in (["tag=other"], ["rerun=all"]):
        slurm.submit([sweep(tmp_path, *overrides)], report=lines.append)
    Store(tmp_path / "reports").write(recorded(run, source="other code"))
    slurm.submit([sweep(tmp_path)], report=lines.append)
    assert len(submissions.read_text().splitlines()) == 3


TOO_MANY_STAGES = ["executor=real", "grid.inter=64"]  # the model has fewer layers


def test_refused_run_requests_no_nodes(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    submissions = fake_slurm("COMPLETED")
    (small,) = expand(sweep(tmp_path, "executor=real", "grid.inter=2", "launch.tasks_per_node=2"))
    (large,) = expand(sweep(tmp_path, *TOO_MANY_STAGES, "launch.tasks_per_node=2"))
    assert large.refusal is not None
    assert slurm._request([small, large])["additional_parameters"]["nodes"] == 1
    may_run_on_node = replace(large, refusal=MissingDependency("a package", "a node may have it"))
    assert slurm._request([small, may_run_on_node])["additional_parameters"]["nodes"] == 32
    assert slurm.submit([sweep(tmp_path, *TOO_MANY_STAGES)], report=lambda line: None) == [Exit.NOTHING]
    assert not submissions.exists()
    (record,) = stored_records(tmp_path)
    assert (record.outcome, record.reason) == (Outcome.UNSUPPORTED, str(large.refusal))


def test_record_of_a_killed_job_replaces_no_good_record(tmp_path: Path, fake_slurm: Callable[[str], Path]) -> None:
    fake_slurm("OUT_OF_MEMORY")
    (run,) = expand(sweep(tmp_path))
    for earlier, outcome in ((Outcome.OK, Outcome.OK), (Outcome.TIMEOUT, Outcome.OOM)):
        Store(tmp_path / "reports").write(recorded(run, earlier, "an earlier run"))
        lines: list[str] = []
        assert slurm.submit([sweep(tmp_path, "rerun=all")], report=lines.append) == [Exit.NOTHING]
        (record,) = stored_records(tmp_path)
        assert (record.outcome, record.reason == "an earlier run") == (outcome, earlier is Outcome.OK)
        assert any("OUT_OF_MEMORY" in line and "earlier run" in line for line in lines) is (earlier is Outcome.OK)


@pytest.mark.parametrize(
    ("state", "written", "outcome"),
    [
        ("COMPLETED", None, Outcome.FAILED),
        ("TIMEOUT", None, Outcome.TIMEOUT),
        ("NODE_FAIL", None, Outcome.LOST_RANK),
        ("CANCELLED", None, Outcome.CANCELLED),
        ("TIMEOUT", Outcome.CANCELLED, Outcome.TIMEOUT),  # the job itself knows of a signal alone
        ("CANCELLED", Outcome.CANCELLED, Outcome.CANCELLED),
        ("TIMEOUT", Outcome.OK, Outcome.OK),  # it had ended its runs
    ],
)
def test_state_of_a_job_decides_what_its_records_do_not(
    state: str, written: Outcome | None, outcome: Outcome, tmp_path: Path, fake_slurm: Callable[[str], Path]
) -> None:
    fake_slurm(state)
    (run,) = expand(sweep(tmp_path))

    def job(line: str) -> None:
        if written and line.startswith("slurm: job 7, "):
            Store(tmp_path / "reports").write(recorded(run, written, "by the job"))

    (status,) = slurm.submit([sweep(tmp_path)], report=job)
    assert status == (Exit.OK if outcome is Outcome.OK else Exit.NOTHING)
    (record,) = stored_records(tmp_path)
    assert record.outcome is outcome
    assert record.key == ("0" * 20 if written else run.key)


class SimulatedController:
    """A Slurm controller whose answer about one job depends on a simulated clock.

    `answers` maps seconds to the output of squeue, or to None for no answer.
    """

    def __init__(self, answers: Callable[[float], str | None], result: Path = Path("nowhere")) -> None:
        self.now, self.answers, self.lines = 0.0, answers, list[str]()
        handle = SimpleNamespace(job_id="7", state="UNKNOWN", paths=SimpleNamespace(result_pickle=result))
        self.job = slurm.Job((), handle=handle)  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Wait for the job; its last state."""
        monkeypatch.setattr(slurm, "time", self)
        monkeypatch.setattr(slurm, "_ask_slurm", lambda *command: self.answers(self.now))
        slurm._wait([self.job], "name", self.lines.append, limit=3600)
        return self.job.state


def test_controller_that_does_not_answer_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = SimulatedController(lambda now: "7 RUNNING" if now < 5 else None if now < 600 else "7 COMPLETED")
    assert controller.wait(monkeypatch) == "COMPLETED"
    assert controller.now >= 600
    assert any("Slurm does not answer" in line for line in controller.lines)
    assert not any("1 ended" in line for line in controller.lines[:-1])


def test_job_unknown_to_slurm_has_ended_after_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    controller = SimulatedController(lambda now: "7 RUNNING" if now < 5 else "")
    assert controller.wait(monkeypatch) == "RUNNING"
    assert slurm.GONE_AFTER <= controller.now - 5 <= slurm.GONE_AFTER + 20
    controller = SimulatedController(lambda now: "7 RUNNING" if now < 5 else "", result=tmp_path)
    controller.wait(monkeypatch)
    assert controller.now < 20, "a job with a result is not awaited"


def test_job_unknown_for_less_than_a_minute_or_preempted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for answers in (
        lambda now: "" if now < 30 else "7 COMPLETED",  # not known yet
        lambda now: "" if now < 40 or 60 < now < 100 else "7 RUNNING" if now < 120 else "7 COMPLETED",
        lambda now: "7 PREEMPTED" if now < 200 else "7 PENDING" if now < 400 else "7 COMPLETED",
    ):
        assert SimulatedController(answers).wait(monkeypatch) == "COMPLETED"
