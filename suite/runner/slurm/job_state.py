"""States of Slurm jobs, from sacct, scontrol or the exit status that a job wrote.

sacct reports all past jobs on a cluster that keeps accounts. scontrol reports a job until some minutes after its end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from suite.core.record import Outcome

Task = tuple[str, int]  # job number of an array, and index of the job in it
_QUERY_TIMEOUT = 30.0  # seconds
_CLOCK_SKEW = 5.0  # seconds by which the clocks of two nodes may differ


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job as Slurm names it, Slurm's reason, and the signal and exit status that ended the job."""

    name: str
    reason: str = ""
    signal: int = 0
    status: int = 0

    @property
    def ended(self) -> bool:
        return self.name in _END_STATES


# outcome and reason of a run without a record, by the state in which its job ended
_END_STATES: Mapping[str, tuple[Outcome, str]] = {
    "COMPLETED": (Outcome.FAILED, "the job ended and left no record of this run"),
    "FAILED": (Outcome.FAILED, "the job failed before it could leave a record"),
    "LAUNCH_FAILED": (Outcome.FAILED, "Slurm could not launch the job"),
    "CANCELLED": (Outcome.CANCELLED, "the job was cancelled"),
    "REVOKED": (Outcome.CANCELLED, "the job was revoked because another cluster started it"),
    "PREEMPTED": (Outcome.CANCELLED, "the job was preempted by a job of higher priority"),
    "TIMEOUT": (Outcome.TIMEOUT, "the job exceeded its time limit"),
    "DEADLINE": (Outcome.TIMEOUT, "the job could not finish before its deadline"),
    "OUT_OF_MEMORY": (Outcome.OOM, "the job exceeded its memory limit"),
    "NODE_FAIL": (Outcome.LOST_RANK, "a node of the job failed"),
    "BOOT_FAIL": (Outcome.LOST_RANK, "a node of the job did not boot"),
}
UNKNOWN = JobState("UNKNOWN")


def outcome_of(state: JobState) -> tuple[Outcome, str]:
    """Outcome and reason of a run without a record whose job is in `state`."""
    if state.name not in _END_STATES:
        return Outcome.LOST_RANK, f"Slurm does not report how the job ended ({state.name.lower()})"
    outcome, reason = _END_STATES[state.name]
    if state.name == "FAILED" and state.signal:
        outcome, reason = Outcome.LOST_RANK, f"the job was ended by signal {state.signal}"
    elif state.name == "FAILED" and state.status:
        reason = f"{reason}: exit status {state.status}"
    detail = "" if state.reason in ("", "None", "NonZeroExitCode", "TimeLimit") else f" ({state.reason})"
    return outcome, f"{reason}{detail}; Slurm state: {state.name}"


def parse_sacct(text: str) -> dict[Task, JobState]:
    """States from the output of `sacct --json -X`, and none from output of another form: scontrol then decides.

    Slurm 23.02 and later write a number as `{"set": true, "number": N}` and a state as a list of words.
    """
    try:
        return {task: state for job in json.loads(text)["jobs"] for task, state in _accounted_tasks(job)}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}


def _accounted_tasks(job: Any) -> Iterator[tuple[Task, JobState]]:
    """Tasks of one entry of sacct: a job, or the waiting tasks of an array."""
    array, current, code = job["array"], job["state"]["current"], job["exit_code"]
    signal = code.get("signal") or {}
    ended = _decode_exit(_number(code["return_code"]), _number(signal.get("signal_id", signal.get("id"))))
    name = current if isinstance(current, str) else current[0]
    job_id, waiting = str(_number(array["job_id"]) or job["job_id"]), str(array.get("task") or "")
    for task in _parse_tasks(waiting) if waiting else [_number(array["task_id"])]:
        yield (job_id, task), JobState(name, str(job["state"].get("reason") or ""), *ended)


def _number(field: Any) -> int:
    if isinstance(field, Mapping):
        field = field.get("number") if field.get("set") else 0
    return int(field or 0)


def parse_scontrol(text: str) -> dict[Task, JobState]:
    """States from the output of `scontrol -o show job`."""
    states: dict[Task, JobState] = {}
    for line in text.splitlines():
        fields: dict[str, str] = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobState" not in fields:
            continue
        status, _, signal = fields.get("ExitCode", "").partition(":")
        ended = _decode_exit(*(int(part) if part.isdigit() else 0 for part in (status, signal)))
        for task in _parse_tasks(fields.get("ArrayTaskId", "0")):
            job_id = fields.get("ArrayJobId", fields.get("JobId", ""))
            states[job_id, task] = JobState(fields["JobState"], fields.get("Reason", ""), *ended)
    return states


def _decode_exit(status: int, signal: int) -> tuple[int, int]:
    """Signal and exit status. A status above 128 is a shell's 128 + signal."""
    return (signal or status - 128 if status > 128 else signal), status


def _parse_tasks(text: str) -> list[int]:
    """Indices in an array's `3`, `[3-5,8]` or `1-7:2%4`. A job outside of an array has index 0."""
    indices: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            indices += range(first, last + 1, int(match[3] or 1))
    return indices or [0]


def query_slurm(*command: str) -> str | None:
    """Output of a Slurm program: empty if Slurm does not know the job, None if the program fails or times out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_QUERY_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return "" if "invalid job id" in done.stderr.lower() else None
    return done.stdout


def query_states(job_ids: Sequence[str]) -> tuple[dict[Task, JobState], set[str]]:
    """States of all jobs of these arrays that Slurm still reports, and the arrays for which scontrol failed."""
    states: dict[Task, JobState] = {}
    unanswered = set()
    for job_id in job_ids:
        answer = query_slurm("scontrol", "-o", "show", "job", job_id)
        states |= parse_scontrol(answer or "")
        unanswered |= {job_id} if answer is None else set()
    if shutil.which("sacct"):
        accounted = parse_sacct(query_slurm("sacct", "--json", "-X", "-j", ",".join(job_ids)) or "")
        states |= {task: state for task, state in accounted.items() if state.ended or task not in states}
    return states, unanswered


def termination_reason(environment: Mapping[str, str] | None = None) -> tuple[Outcome, str] | None:
    """Inside a job that received SIGTERM: the outcome of its open runs and the reason. None outside of a job.

    Slurm sends SIGTERM both for a cancelled job and at the time limit.
    """
    environment = os.environ if environment is None else environment
    job_id = environment.get("SLURM_JOB_ID")
    if job_id is None:
        return None
    answer = query_slurm("scontrol", "-o", "show", "job", job_id) or ""
    task = environment.get("SLURM_ARRAY_JOB_ID", job_id), int(environment.get("SLURM_ARRAY_TASK_ID", 0))
    state = parse_scontrol(answer).get(task, UNKNOWN)
    if state.ended and state.name not in ("COMPLETED", "FAILED"):
        return outcome_of(state)
    end = environment.get("SLURM_JOB_END_TIME") or _time_limit_end(answer)
    expired = end is not None and time.time() >= float(end) - _CLOCK_SKEW
    return outcome_of(JobState("TIMEOUT" if expired else "CANCELLED"))


def _time_limit_end(answer: str) -> float | None:
    """Time (seconds since 1970) at which a job reaches its limit, from `scontrol show job`.

    EndTime does not serve: a cancel moves it to the present.
    """
    start = re.search(r"\bStartTime=(\S+)", answer)
    limit = re.search(r"\bTimeLimit=(?:(\d+)-)?(\d+):(\d+):(\d+)", answer)
    if start is None or limit is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in limit.groups())
    try:
        begin = datetime.fromisoformat(start[1]).timestamp()
    except ValueError:
        return None
    return begin + 86400 * days + 3600 * hours + 60 * minutes + seconds
