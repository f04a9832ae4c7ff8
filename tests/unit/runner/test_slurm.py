"""Slurm job states, sbatch scripts, and records for jobs that wrote none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome
from suite.runner.provenance import circumstances
from suite.runner.runs import expand
from suite.runner.slurm import job_records, job_state, submit
from suite.runner.slurm.job_state import JobState, outcome_of, parse_sacct, parse_scontrol, termination_reason
from suite.runner.store import Store, key_of

SCONTROL = """\
JobId=15 ArrayJobId=12 ArrayTaskId=2-4%2 JobName=suite-x UserId=root(0) JobState=PENDING Reason=Resources ExitCode=0:0
JobId=14 ArrayJobId=12 ArrayTaskId=1 JobName=suite-x JobState=COMPLETING Reason=None ExitCode=0:15
JobId=13 ArrayJobId=12 ArrayTaskId=0 JobName=suite-x JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0
"""
ON_A_NODE = {"SLURM_JOB_NAME": "suite-abc-0", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}


def old_job(array: int, task: int | str, state: str, status: int = 0, signal: int = 0) -> dict[str, Any]:
    """A job as sacct of Slurm 22.05 writes it. A string is the list of array indices that still wait."""
    waiting = isinstance(task, str)
    return {
        "job_id": 13,
        "array": {"job_id": array, "task_id": None if waiting else task, "task": task if waiting else None},
        "state": {"current": state, "reason": "None"},
        "exit_code": {"return_code": status, **({"signal": {"signal_id": signal, "name": "?"}} if signal else {})},
    }


def new_job(array: int, task: int | str, state: str, status: int = 0, signal: int = 0) -> dict[str, Any]:
    """The same job as sacct of Slurm 24.05 writes it."""

    def number(value: int | None) -> dict[str, Any]:
        return {"set": value is not None, "infinite": False, "number": value or 0}

    waiting = isinstance(task, str)
    return {
        "job_id": 13,
        "array": {
            "job_id": array,
            "task_id": number(None if isinstance(task, str) else task),
            "task": task if waiting else "",
        },
        "state": {"current": [state], "reason": "None"},
        "exit_code": {
            "status": ["?"],
            "return_code": number(status),
            "signal": {"id": number(signal or None), "name": "?"},
        },
    }


@pytest.mark.parametrize("job", [old_job, new_job])
def test_sacct_states_are_read_in_both_json_forms(job: Callable[..., dict[str, Any]]) -> None:
    jobs = [
        job(12, 0, "COMPLETED"),
        job(12, 1, "CANCELLED"),
        job(12, 2, "OUT_OF_MEMORY", signal=125),
        job(12, 3, "FAILED", signal=9),
        job(12, 4, "FAILED", status=2),
        job(12, 5, "RUNNING"),
        job(12, "9-10,12", "PENDING"),
        job(0, 0, "DEADLINE"),
    ]
    states = parse_sacct(json.dumps({"jobs": jobs}))
    assert states["12", 2] == JobState("OUT_OF_MEMORY", "None", signal=125)
    assert states["12", 3] == JobState("FAILED", "None", signal=9)
    assert states["12", 4] == JobState("FAILED", "None", status=2)
    assert [task for (_, task), state in states.items() if state.name == "PENDING"] == [9, 10, 12]
    assert {task for (job_id, task), state in states.items() if job_id == "12" and state.ended} == set(range(5))
    assert states["13", 0].ended


@pytest.mark.parametrize("text", ["", "Slurm accounting storage is disabled", "[]", "{}"])
def test_sacct_without_accounts_reports_no_state(text: str) -> None:
    assert parse_sacct(text) == {}


@pytest.mark.parametrize("missing", ["array", "state", "exit_code"])
def test_sacct_of_another_form_reports_no_state(missing: str) -> None:
    """A release of Slurm may move a key; the states of scontrol then decide."""
    job = new_job(12, 2, "COMPLETED")
    assert parse_sacct(json.dumps({"jobs": [job]})) != {}
    assert parse_sacct(json.dumps({"jobs": [{name: value for name, value in job.items() if name != missing}]})) == {}
    assert parse_sacct(json.dumps({"jobs": [{**job, "state": {"current": []}}]})) == {}


def test_scontrol_states_cover_every_index_of_an_array() -> None:
    states = parse_scontrol(SCONTROL)
    assert [states["12", task].name for task in range(5)] == ["FAILED", "COMPLETING", "PENDING", "PENDING", "PENDING"]
    assert not any(states["12", task].ended for task in range(1, 5))
    assert states["12", 0].signal == 9, "a shell exits with 128 + signal"
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") == {}


@pytest.mark.parametrize(
    ("state", "outcome", "excerpt"),
    [
        (JobState("COMPLETED"), Outcome.FAILED, ""),
        (JobState("CANCELLED", "by 1000"), Outcome.CANCELLED, "(by 1000); Slurm state: CANCELLED"),
        (JobState("REVOKED"), Outcome.CANCELLED, ""),
        (JobState("PREEMPTED"), Outcome.CANCELLED, ""),
        (JobState("TIMEOUT", "TimeLimit"), Outcome.TIMEOUT, "time limit; Slurm state: TIMEOUT"),
        (JobState("DEADLINE"), Outcome.TIMEOUT, ""),
        (JobState("OUT_OF_MEMORY", "", 125), Outcome.OOM, ""),
        (JobState("NODE_FAIL"), Outcome.LOST_RANK, ""),
        (JobState("BOOT_FAIL"), Outcome.LOST_RANK, ""),
        (JobState("LAUNCH_FAILED"), Outcome.FAILED, ""),
        (JobState("FAILED", "NonZeroExitCode", 0, 77), Outcome.FAILED, "exit status 77; Slurm state: FAILED"),
        (JobState("FAILED", "", 9), Outcome.LOST_RANK, "signal 9"),
        (JobState("UNKNOWN"), Outcome.LOST_RANK, ""),
    ],
)
def test_job_state_decides_the_outcome_of_missing_records(state: JobState, outcome: Outcome, excerpt: str) -> None:
    assert outcome_of(state)[0] is outcome
    assert excerpt in outcome_of(state)[1]


@pytest.mark.parametrize(
    ("answer", "end", "outcome"),
    [
        ("JobId=7 JobState=CANCELLED Reason=None", None, Outcome.CANCELLED),
        ("JobId=7 JobState=TIMEOUT Reason=TimeLimit", None, Outcome.TIMEOUT),
        ("JobId=7 JobState=PREEMPTED Reason=None", None, Outcome.CANCELLED),
        # a cancel moves EndTime to the present
        ("JobState=COMPLETING StartTime=BEGIN EndTime=NOW TimeLimit=00:10:00", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=BEGIN EndTime=NOW TimeLimit=00:01:00", None, Outcome.TIMEOUT),
        ("JobState=COMPLETING StartTime=BEGIN EndTime=NOW TimeLimit=1-00:00:00", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=BEGIN EndTime=NOW TimeLimit=UNLIMITED", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=Unknown EndTime=NOW TimeLimit=00:01:00", None, Outcome.CANCELLED),
        ("", -1, Outcome.TIMEOUT),  # no answer from Slurm: the environment holds the end time
        ("", 600, Outcome.CANCELLED),
        ("", None, Outcome.CANCELLED),
    ],
)
def test_sigterm_of_a_cancel_differs_from_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, answer: str, end: int | None, outcome: Outcome
) -> None:
    for word, seconds in (("BEGIN", -61), ("NOW", 0)):
        answer = answer.replace(word, datetime.fromtimestamp(time.time() + seconds).isoformat(timespec="seconds"))
    monkeypatch.setattr(job_state, "query_slurm", lambda *command: answer)
    environment = {"SLURM_JOB_ID": "7"} | ({} if end is None else {"SLURM_JOB_END_TIME": str(int(time.time() + end))})
    ending = termination_reason(environment)
    assert ending is not None
    assert ending[0] is outcome
    assert termination_reason({}) is None, "outside of a job"


def sweep(tmp_path: Path, *overrides: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *overrides]


def test_dry_run_prints_scripts_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # a machine without Slurm
    lines: list[str] = []
    launch = ["launch.partition=gpu", "launch.time=90", "launch.setup=[module load cuda]"]
    launch.append("launch.extra={mem: 8G, exclusive: true, mail_type: null}")
    jobs = [
        sweep(tmp_path, *launch),
        sweep(tmp_path, *launch, "tag=b"),
        sweep(tmp_path, "launch.nodes=2", "executor=real", "grid.inter=4"),
    ]
    finished = submit.submit_sweep(jobs, dry_run=True, report=lines.append)
    assert [job.status for job in finished] == [Exit.OK] * 3, lines
    assert len(lines) == 2, "jobs with one resource request form one array"
    for option in (
        *("--array=0-1%2", "--partition=gpu", "--time=90", "--mem=8G", "--exclusive", "--nodes=1"),
        "--ntasks-per-node=1",
    ):
        assert f"#SBATCH {option}\n" in lines[0]
    assert "#SBATCH --mail" not in lines[0]
    assert "module load cuda\n" in lines[0]
    assert "#SBATCH --nodes=2\n" in lines[1]
    assert "#SBATCH --ntasks-per-node=2\n" in lines[1]
    assert "tag=b launch.submit=false" in lines[0]
    assert not (tmp_path / "reports").exists()
    with pytest.raises(MissingDependency, match="sbatch"):
        submit.submit_sweep(jobs, report=lines.append)


def test_extra_options_of_a_job_are_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        submit._resource_request(expand([*sweep(tmp_path)[:1], "launch.extra=[mem]"]))
    assert refusal.value.key == "launch.extra"


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
    assert record.key == key_of(runs[0].settings, circumstances(runs[0].outline))
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
