"""Slurm's states of ended jobs, and the outcomes of a sweep's runs."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.exit_codes import Exit
from suite.core.record import Outcome
from suite.runner.provenance import circumstances
from suite.runner.runs import expand
from suite.runner.slurm import job_records, job_state, submit
from suite.runner.slurm.job_state import JobState, meaning, of_sacct, of_scontrol, why_ended
from suite.runner.store import Store, key_of

SACCT = """\
12_0|COMPLETED|0:0
12_1|CANCELLED by 1000|0:0
12_2|TIMEOUT|0:0
12_3|OUT_OF_MEMORY|0:125
12_4|NODE_FAIL|1:0
12_5|PREEMPTED|0:0
12_6|FAILED|0:9
12_7|FAILED|2:0
12_8|RUNNING|0:0
12_[9-10,12]|PENDING|0:0
13|DEADLINE|0:0
"""
SCONTROL = """\
JobId=15 ArrayJobId=12 ArrayTaskId=2-4%2 JobName=suite-x UserId=root(0) JobState=PENDING Reason=Resources ExitCode=0:0
JobId=14 ArrayJobId=12 ArrayTaskId=1 JobName=suite-x JobState=COMPLETING Reason=None ExitCode=0:15
JobId=13 ArrayJobId=12 ArrayTaskId=0 JobName=suite-x JobState=FAILED Reason=NonZeroExitCode ExitCode=137:0
"""


def test_what_sacct_says() -> None:
    found = of_sacct(SACCT)
    assert found["12", 1] == JobState("CANCELLED", "by 1000")
    assert found["12", 3] == JobState("OUT_OF_MEMORY", "", 125)
    assert found["12", 6] == JobState("FAILED", "", 9)
    assert [task for (job, task), state in found.items() if state.name == "PENDING"] == [9, 10, 12]
    assert {task for (job, task), state in found.items() if job == "12" and state.over} == set(range(8))
    assert found["13", 0].over


def test_what_scontrol_says() -> None:
    found = of_scontrol(SCONTROL)
    assert [found["12", task].name for task in range(5)] == ["FAILED", "COMPLETING", "PENDING", "PENDING", "PENDING"]
    assert not any(found["12", task].over for task in range(1, 5))
    assert found["12", 0].signal == 9, "a shell writes 128 and the signal"
    assert of_scontrol("slurm_load_jobs error: Invalid job id specified") == {}


@pytest.mark.parametrize(
    ("state", "outcome", "says"),
    [
        (JobState("COMPLETED"), Outcome.FAILED, "left no record"),
        (JobState("CANCELLED", "by 1000"), Outcome.CANCELLED, "cancelled (by 1000); Slurm says CANCELLED"),
        (JobState("REVOKED"), Outcome.CANCELLED, "another cluster"),
        (JobState("PREEMPTED"), Outcome.CANCELLED, "higher priority"),
        (JobState("TIMEOUT", "TimeLimit"), Outcome.TIMEOUT, "past its time limit; Slurm says TIMEOUT"),
        (JobState("DEADLINE"), Outcome.TIMEOUT, "deadline"),
        (JobState("OUT_OF_MEMORY", "", 125), Outcome.OOM, "more memory"),
        (JobState("NODE_FAIL"), Outcome.LOST_RANK, "a node of the job failed"),
        (JobState("BOOT_FAIL"), Outcome.LOST_RANK, "did not boot"),
        (JobState("LAUNCH_FAILED"), Outcome.FAILED, "could not launch"),
        (JobState("FAILED", "NonZeroExitCode", 0, 77), Outcome.FAILED, "exit status 77; Slurm says FAILED"),
        (JobState("FAILED", "", 9), Outcome.LOST_RANK, "ended by signal 9"),
        (JobState("UNKNOWN"), Outcome.LOST_RANK, "knows nothing"),
    ],
)
def test_what_an_end_means(state: JobState, outcome: Outcome, says: str) -> None:
    found, reason = meaning(state)
    assert found is outcome
    assert says in reason


@pytest.mark.parametrize(
    ("answer", "end", "outcome"),
    [
        ("JobId=7 JobState=CANCELLED Reason=None", None, Outcome.CANCELLED),
        ("JobId=7 JobState=TIMEOUT Reason=TimeLimit", None, Outcome.TIMEOUT),
        ("JobId=7 JobState=PREEMPTED Reason=None", None, Outcome.CANCELLED),
        # a cancel moves the end of a job to now
        ("JobState=COMPLETING StartTime=BEGUN EndTime=NOW TimeLimit=00:10:00", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=BEGUN EndTime=NOW TimeLimit=00:01:00", None, Outcome.TIMEOUT),
        ("JobState=COMPLETING StartTime=BEGUN EndTime=NOW TimeLimit=1-00:00:00", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=BEGUN EndTime=NOW TimeLimit=UNLIMITED", None, Outcome.CANCELLED),
        ("JobState=COMPLETING StartTime=Unknown EndTime=NOW TimeLimit=00:01:00", None, Outcome.CANCELLED),
        ("", -1, Outcome.TIMEOUT),  # Slurm does not answer: the job's own end tells
        ("", 600, Outcome.CANCELLED),
        ("", None, Outcome.CANCELLED),
    ],
)
def test_a_cancel_and_a_time_limit_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, answer: str, end: int | None, outcome: Outcome
) -> None:
    for word, seconds in (("BEGUN", -61), ("NOW", 0)):
        answer = answer.replace(word, datetime.fromtimestamp(time.time() + seconds).isoformat(timespec="seconds"))
    monkeypatch.setattr(job_state, "ask", lambda *command: answer)
    told = {"SLURM_JOB_ID": "7"} | ({} if end is None else {"SLURM_JOB_END_TIME": str(int(time.time() + end))})
    found = why_ended(told)
    assert found is not None
    assert found[0] is outcome
    assert why_ended({}) is None, "no job"


def sweep(tmp_path: Path, *more: str) -> list[str]:
    return ["launch=slurm", "executor=check", f"reports={tmp_path / 'reports'}", *more]


def test_a_dry_run_says_the_scripts_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # no Slurm here
    said: list[str] = []
    asked = ["launch.partition=gpu", "launch.time=90", "launch.setup=[module load cuda]", "launch.extra={mem: 8G}"]
    jobs = [
        sweep(tmp_path, *asked),
        sweep(tmp_path, *asked, "tag=b"),
        sweep(tmp_path, "launch.nodes=2", "executor=real"),
    ]
    jobs[2].append("grid.inter=4")
    ended = submit.submitted(jobs, dry_run=True, say=said.append)
    assert [job.status for job in ended] == [Exit.OK] * 3, said
    assert len(said) == 2, "jobs of one shape are one array"
    for line in ("--array=0-1%2", "--partition=gpu", "--time=90", "--mem=8G", "--nodes=1", "--ntasks-per-node=1"):
        assert f"#SBATCH {line}\n" in said[0]
    assert "module load cuda\n" in said[0]
    assert "#SBATCH --nodes=2\n" in said[1]
    assert "#SBATCH --ntasks-per-node=2\n" in said[1]
    assert "--signal" not in said[0], "an early signal would end the ranks"
    assert "tag=b launch.submit=false" in said[0]
    assert not (tmp_path / "reports").exists()
    with pytest.raises(MissingDependency, match="sbatch is not on this machine"):
        submit.submitted(jobs, say=said.append)


def test_ranks_that_have_no_place_are_refused(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = [["launch=slurm", "grid.inter=4", "launch.nodes=1", "launch.tasks_per_node=2"]]
    (job,) = submit.submitted(jobs, dry_run=True, say=said.append)
    assert job.status == Exit.NOTHING
    assert "4 ranks on launch.nodes=1" in said[0]
    with pytest.raises(InvalidRequest, match="extra"):
        submit._options(expand([*sweep(tmp_path)[:1], "launch.extra=[mem]"]))


def test_a_job_that_began_gets_its_records_by_the_names_it_has_said(tmp_path: Path) -> None:
    runs = expand(sweep(tmp_path))
    store = Store(tmp_path / "reports")
    key = "0" * 20  # a node is another machine: only the job knows its name
    told = {"SLURM_JOB_NAME": "suite-abc-0", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    job_records.announced(runs, [key], {})
    assert not (tmp_path / "reports").exists(), "no job, no word"
    job_records.announced(runs, [key], told)
    (record,) = job_records.leave(runs, "5_1", "suite-abc-0", (Outcome.TIMEOUT, "too long"))
    assert (record.key, record.outcome, record.reason) == (key, Outcome.TIMEOUT, "job 5_1: too long")
    assert store.find(key) == record
    assert job_records.leave(runs, "5_1", "suite-abc-0", (Outcome.FAILED, "again")) == [record], "it was written over"


@pytest.mark.parametrize("name", ["suite-abc-1", "suite-other-0"])
def test_a_job_that_never_began_gets_its_records_by_the_names_of_here(tmp_path: Path, name: str) -> None:
    runs = expand(sweep(tmp_path))
    told = {"SLURM_JOB_NAME": "suite-abc-0", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    job_records.announced(runs, ["0" * 20], told)  # an earlier job of that number
    (record,) = job_records.leave(runs, "5_1", name, (Outcome.CANCELLED, "cancelled"))
    assert record.key == key_of(runs[0].settings, circumstances(runs[0].outline))
    assert "before it had begun" in record.reason


def test_what_a_node_has_measured_is_not_submitted_again(tmp_path: Path) -> None:
    runs = expand(sweep(tmp_path))
    key = "0" * 20
    told = {"SLURM_JOB_NAME": "suite-abc-0", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    assert job_records.standing(runs) == []
    job_records.announced(runs, [key], told)
    job_records.leave(runs, "5_1", "suite-abc-0", (Outcome.FAILED, "no"))
    assert [record.key for record in job_records.standing(runs)] == [key]
    assert job_records.standing(expand(sweep(tmp_path, "rerun=failed"))) == []
    assert job_records.standing(expand(sweep(tmp_path, "seed=1"))) == [], "another config"
    path = tmp_path / "reports" / "slurm" / "jobs" / "5_1.json"
    content = json.loads(path.read_text())
    content["runs"][0]["circumstances"]["machine"] = {"cores": 4096}
    path.write_text(json.dumps(content))
    assert job_records.standing(runs), "a node is another machine than where one submits from"
    content["runs"][0]["circumstances"]["source"] = "another"
    path.write_text(json.dumps(content))
    assert job_records.standing(runs) == [], "other code"
