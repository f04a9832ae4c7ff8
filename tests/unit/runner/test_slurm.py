"""Slurm job states, sbatch scripts, and records for jobs that wrote none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from suite.runner.executors import in_process
from suite.runner.provenance import circumstances
from suite.runner.runs import Run, expand
from suite.runner.slurm import job_records, job_state, submit, wait
from suite.runner.slurm.job_state import JobState, outcome_of, parse_sacct, parse_scontrol, termination_reason
from suite.runner.store import Store, key_of
from tests.support.refusals import refused

SCONTROL = """\
JobId=15 ArrayJobId=12 ArrayTaskId=2-4%2 JobName=suite-x UserId=root(0) JobState=PENDING Reason=Resources ExitCode=0:0
JobId=14 ArrayJobId=12 ArrayTaskId=1 JobName=suite-x JobState=COMPLETING Reason=None ExitCode=0:15
JobId=13 ArrayJobId=12 ArrayTaskId=0 JobName=suite-x JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0
"""
ON_A_NODE = {"SLURM_JOB_NAME": "suite-abc-0", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}


def old_job(task: int | str, state: str, status: int = 0, signal: int = 0, array: int = 12) -> dict[str, Any]:
    """A job as sacct of Slurm 22.05 writes it. A string is the list of array indices that still wait."""
    waiting = isinstance(task, str)
    return {
        "job_id": 13,
        "array": {"job_id": array, "task_id": None if waiting else task, "task": task if waiting else None},
        "state": {"current": state, "reason": "None"},
        "exit_code": {"return_code": status, **({"signal": {"signal_id": signal, "name": "?"}} if signal else {})},
    }


def new_job(task: int | str, state: str, status: int = 0, signal: int = 0, array: int = 12) -> dict[str, Any]:
    """The same job as sacct of Slurm 24.05 writes it."""

    def number(value: Any) -> dict[str, Any]:
        return {"set": value is not None, "infinite": False, "number": value or 0}

    waiting = isinstance(task, str)
    code = {"status": ["?"], "return_code": number(status), "signal": {"id": number(signal or None), "name": "?"}}
    return {
        "job_id": 13,
        "array": {"job_id": array, "task_id": number(None if waiting else task), "task": task if waiting else ""},
        "state": {"current": [state], "reason": "None"},
        "exit_code": code,
    }


@pytest.mark.parametrize("job", [old_job, new_job])
def test_sacct_states_are_read_in_both_json_forms(job: Callable[..., dict[str, Any]]) -> None:
    jobs = [job(0, "COMPLETED"), job(1, "CANCELLED"), job(2, "OUT_OF_MEMORY", signal=125), job(3, "FAILED", signal=9)]
    jobs += [job(4, "FAILED", status=2), job(5, "RUNNING"), job("9-10,12", "PENDING"), job(0, "DEADLINE", array=0)]
    states = parse_sacct(json.dumps({"jobs": jobs}))
    assert states["12", 2] == JobState("OUT_OF_MEMORY", "None", signal=125)
    assert states["12", 3] == JobState("FAILED", "None", signal=9)
    assert states["12", 4] == JobState("FAILED", "None", status=2)
    assert [task for (_, task), state in states.items() if state.name == "PENDING"] == [9, 10, 12]
    assert {task for (job_id, task), state in states.items() if job_id == "12" and state.ended} == set(range(5))
    assert states["13", 0].ended


def test_sacct_of_another_form_reports_no_state() -> None:
    """A release of Slurm may move a key; the states of scontrol then decide."""
    job = new_job(2, "COMPLETED")
    assert parse_sacct(json.dumps({"jobs": [job]})) != {}
    others = [{key: job[key] for key in job if key != missing} for missing in ("array", "state", "exit_code")]
    texts = [json.dumps({"jobs": [other]}) for other in (*others, {**job, "state": {"current": []}})]
    for text in ("", "Slurm accounting storage is disabled", "[]", "{}", *texts):
        assert parse_sacct(text) == {}, text


def test_scontrol_states_cover_every_index_of_an_array() -> None:
    states = parse_scontrol(SCONTROL)
    assert [states["12", task].name for task in range(5)] == ["FAILED", "COMPLETING", "PENDING", "PENDING", "PENDING"]
    assert not any(states["12", task].ended for task in range(1, 5))
    assert states["12", 0].signal == 9, "a shell exits with 128 + signal"
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") == {}


def test_job_state_decides_the_outcome_of_missing_records() -> None:
    for state, outcome, excerpt in (
        (JobState("COMPLETED"), Outcome.FAILED, ""),
        (JobState("CANCELLED", "by 1000"), Outcome.CANCELLED, "by 1000"),
        (JobState("REVOKED"), Outcome.CANCELLED, ""),
        (JobState("PREEMPTED"), Outcome.CANCELLED, ""),
        (JobState("TIMEOUT", "TimeLimit"), Outcome.TIMEOUT, "TIMEOUT"),
        (JobState("DEADLINE"), Outcome.TIMEOUT, ""),
        (JobState("OUT_OF_MEMORY", "", 125), Outcome.OOM, ""),
        (JobState("NODE_FAIL"), Outcome.LOST_RANK, ""),
        (JobState("BOOT_FAIL"), Outcome.LOST_RANK, ""),
        (JobState("LAUNCH_FAILED"), Outcome.FAILED, ""),
        (JobState("FAILED", "NonZeroExitCode", 0, 77), Outcome.FAILED, "exit status 77"),
        (JobState("FAILED", "", 9), Outcome.LOST_RANK, "signal 9"),
        (JobState("UNKNOWN"), Outcome.LOST_RANK, ""),
    ):
        ending, reason = outcome_of(state)
        assert ending is outcome, state
        assert excerpt in reason


COMPLETING = "JobState=COMPLETING StartTime=BEGIN EndTime=NOW TimeLimit="  # a cancel moves EndTime to the present
TERMINATED = (  # answer of scontrol, seconds to the end that the environment holds, outcome
    ("JobId=7 JobState=CANCELLED Reason=None", None, Outcome.CANCELLED),
    ("JobId=7 JobState=TIMEOUT Reason=TimeLimit", None, Outcome.TIMEOUT),
    ("JobId=7 JobState=PREEMPTED Reason=None", None, Outcome.CANCELLED),
    (f"{COMPLETING}00:10:00", None, Outcome.CANCELLED),
    (f"{COMPLETING}00:01:00", None, Outcome.TIMEOUT),
    (f"{COMPLETING}1-00:00:00", None, Outcome.CANCELLED),
    (f"{COMPLETING}UNLIMITED", None, Outcome.CANCELLED),
    ("JobState=COMPLETING StartTime=Unknown EndTime=NOW TimeLimit=00:01:00", None, Outcome.CANCELLED),
    ("", -1, Outcome.TIMEOUT),
    ("", 600, Outcome.CANCELLED),
    ("", None, Outcome.CANCELLED),
)


def test_sigterm_of_a_cancel_differs_from_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now().replace(microsecond=0)
    for template, end, outcome in TERMINATED:
        begin = now - timedelta(seconds=61)
        answer = template.replace("BEGIN", begin.isoformat()).replace("NOW", now.isoformat())
        monkeypatch.setattr(job_state, "query_slurm", lambda *command, answer=answer: answer)
        environment = {"SLURM_JOB_ID": "7"}
        if end is not None:
            environment["SLURM_JOB_END_TIME"] = str(int(time.time() + end))
        ending = termination_reason(environment)
        assert ending is not None
        assert ending[0] is outcome, answer
    assert termination_reason({}) is None, "outside of a job"


def sweep(tmp_path: Path, *overrides: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *overrides]


def test_dry_run_prints_scripts_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # a machine without Slurm
    lines: list[str] = []
    launch = ["launch.partition=gpu", "launch.time=90", "launch.setup=[module load cuda]"]
    launch.append("launch.extra={mem: 8G, exclusive: true, mail_type: null}")
    larger = sweep(tmp_path, "launch.nodes=2", "executor=real", "grid.inter=4")
    jobs = [sweep(tmp_path, *launch), sweep(tmp_path, *launch, "tag=b"), larger]
    finished = submit.submit_sweep(jobs, dry_run=True, report=lines.append)
    assert [job.status for job in finished] == [Exit.OK] * 3, lines
    first, second = lines  # jobs with one resource request form one array
    options = "--array=0-1%2 --partition=gpu --time=90 --mem=8G --exclusive --nodes=1 --ntasks-per-node=1"
    assert [option for option in options.split() if f"#SBATCH {option}\n" not in first] == []
    assert [option for option in ("--nodes=2", "--ntasks-per-node=2") if f"#SBATCH {option}\n" not in second] == []
    assert "#SBATCH --mail" not in first
    assert "module load cuda\n" in first
    assert "tag=b launch.submit=false" in first
    assert not (tmp_path / "reports").exists()
    with pytest.raises(MissingDependency, match="sbatch"):
        submit.submit_sweep(jobs, report=lines.append)
    with refused(InvalidRequest, "launch.extra"):
        submit._resource_request(expand([*sweep(tmp_path)[:1], "launch.extra=[mem]"]))
    for own in ("array: 1-3", "time: 5"):  # of the suite itself
        with refused(InvalidRequest, "launch.extra", rule="sets itself"):
            submit._resource_request(expand([*sweep(tmp_path)[:1], f"launch.extra={{{own}}}"]))


def test_started_job_gets_records_by_its_announced_keys(tmp_path: Path) -> None:
    runs = expand(sweep(tmp_path))
    store = Store(tmp_path / "reports")
    key = "0" * 20  # the key on a node, which is another machine
    job_records.announce_runs(runs, [key], {})
    assert not (tmp_path / "reports").exists(), "an announcement outside of a job"
    job_records.announce_runs(runs, [key], ON_A_NODE)
    (record,) = job_records.complete_records(runs, "5_1", "suite-abc-0", (Outcome.TIMEOUT, "too long"))
    assert (record.key, record.outcome, record.reason) == (key, Outcome.TIMEOUT, "job 5_1: too long")
    assert store.find(key) == record
    again = job_records.complete_records(runs, "5_1", "suite-abc-0", (Outcome.FAILED, "again"))
    assert again == [record], "an existing record was overwritten"


@pytest.mark.parametrize("name", ["suite-abc-1", "suite-other-0"])
def test_job_that_never_started_gets_keys_of_this_machine(tmp_path: Path, name: str) -> None:
    runs = expand(sweep(tmp_path))
    job_records.announce_runs(runs, ["0" * 20], ON_A_NODE)  # an earlier job with the same number
    (record,) = job_records.complete_records(runs, "5_1", name, (Outcome.CANCELLED, "cancelled"))
    assert record.key == key_of(runs[0].settings, circumstances(runs[0].config))
    assert "before it started" in record.reason


def test_runs_recorded_on_a_node_are_not_submitted_again(tmp_path: Path) -> None:
    runs = expand(sweep(tmp_path))
    key = "0" * 20
    assert job_records.reusable_records(runs) == []
    job_records.announce_runs(runs, [key], ON_A_NODE)
    job_records.complete_records(runs, "5_1", "suite-abc-0", (Outcome.FAILED, "no"))
    assert [record.key for record in job_records.reusable_records(runs)] == [key]
    assert job_records.reusable_records(expand(sweep(tmp_path, "rerun=failed"))) == []
    assert job_records.reusable_records(expand(sweep(tmp_path, "seed=1"))) == [], "another configuration"
    path = tmp_path / "reports" / "slurm" / "jobs" / "5_1.json"
    content = json.loads(path.read_text())
    content["runs"][0]["circumstances"]["machine"] = {"cores": 4096}
    path.write_text(json.dumps(content))
    assert job_records.reusable_records(runs), "the machine of a node may differ from the submitting one"
    content["runs"][0]["circumstances"]["source"] = "another"
    path.write_text(json.dumps(content))
    assert job_records.reusable_records(runs) == [], "other code"


# -- sweeps against fake Slurm programs: submissions, refusals, waiting, and records of ended jobs --

SBATCH = """
if grep -q 'partition=nowhere' "$2"; then
  echo 'sbatch: error: invalid partition specified: nowhere' >&2
  exit 1
fi
echo "$2" >> $(dirname $0)/submitted
echo '7;cluster'
"""
ANSWER = "JobId=7 ArrayJobId=7 ArrayTaskId=0 JobState={} Reason=None ExitCode=0:0"


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Install Slurm programs that report one state for every job. Returns the file that lists submitted scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(state: str) -> Path:
        scripts = {"sbatch": SBATCH, "scontrol": f"echo '{ANSWER.format(state)}'", "scancel": "", "sacct": "exit 1"}
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder / "submitted"

    return install


def key(run: Run) -> str:
    return key_of(run.settings, circumstances(run.config))


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
        assert record.reason.startswith("launch.nodes=1; ")


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


RUNNING, COMPLETED = ANSWER.format("RUNNING"), ANSWER.format("COMPLETED")


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
