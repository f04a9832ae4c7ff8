"""States of Slurm jobs, from sacct, scontrol or the job's own exit status.

sacct knows every job there ever was, where a cluster keeps accounts; scontrol knows a job for some minutes after its
end; and the job itself leaves its exit status in a file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from suite.core.record import Outcome

Task = tuple[str, int]  # an array's job number, and the number in it
_ASK = 30.0  # seconds for an answer of Slurm's
_LATE = 5.0  # seconds by which the clocks of two nodes may differ


@dataclass(frozen=True, slots=True)
class JobState:
    """Slurm's word for a job, what it adds, and the signal that ended the job (0 for none)."""

    name: str
    why: str = ""
    signal: int = 0
    status: int = 0

    @property
    def over(self) -> bool:
        return self.name in _ENDS


# what an end means for runs that have no record, and why
_ENDS: Mapping[str, tuple[Outcome, str]] = {
    "COMPLETED": (Outcome.FAILED, "the job ended and left no record of this run"),
    "FAILED": (Outcome.FAILED, "the job failed before it could leave a record"),
    "LAUNCH_FAILED": (Outcome.FAILED, "Slurm could not launch the job"),
    "CANCELLED": (Outcome.CANCELLED, "the job was cancelled"),
    "REVOKED": (Outcome.CANCELLED, "the job was revoked: another cluster has it"),
    "PREEMPTED": (Outcome.CANCELLED, "the job was preempted by one of higher priority"),
    "TIMEOUT": (Outcome.TIMEOUT, "the job was past its time limit"),
    "DEADLINE": (Outcome.TIMEOUT, "the job could not be done by its deadline"),
    "OUT_OF_MEMORY": (Outcome.OOM, "the job used more memory than it was given"),
    "NODE_FAIL": (Outcome.LOST_RANK, "a node of the job failed"),
    "BOOT_FAIL": (Outcome.LOST_RANK, "a node of the job did not boot"),
}
UNKNOWN = JobState("UNKNOWN")


def meaning(state: JobState) -> tuple[Outcome, str]:
    """The outcome of a run of a job that ended in `state` without a record, and the reason."""
    if state.name not in _ENDS:
        return Outcome.LOST_RANK, f"Slurm knows nothing of the job's end ({state.name.lower()})"
    outcome, why = _ENDS[state.name]
    if state.name == "FAILED" and state.signal:
        outcome, why = Outcome.LOST_RANK, f"the job was ended by signal {state.signal}"
    elif state.name == "FAILED" and state.status:
        why = f"{why}: exit status {state.status}"
    added = "" if state.why in ("", "None", "NonZeroExitCode", "TimeLimit") else f" ({state.why})"
    return outcome, f"{why}{added}; Slurm says {state.name}"


def of_sacct(text: str) -> dict[Task, JobState]:
    """From `sacct -n -P -X -o JobID,State,ExitCode`."""
    states_by_task: dict[Task, JobState] = {}
    for line in text.splitlines():
        name, state, code, *_ = [*line.split("|"), "", ""]
        job, _, tasks = name.partition("_")
        if not job.isdigit() or not state:
            continue
        word, _, by = state.partition(" ")  # CANCELLED by 1000
        for task in _tasks(tasks):
            states_by_task[job, task] = JobState(word.rstrip("+"), by, *_code(code))
    return states_by_task


def of_scontrol(text: str) -> dict[Task, JobState]:
    """From `scontrol -o show job`."""
    states_by_task: dict[Task, JobState] = {}
    for line in text.splitlines():
        fields_of_line: dict[str, str] = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobState" not in fields_of_line:
            continue
        job = fields_of_line.get("ArrayJobId", fields_of_line.get("JobId", ""))
        state = JobState(
            fields_of_line["JobState"], fields_of_line.get("Reason", ""), *_code(fields_of_line.get("ExitCode", ""))
        )
        for task in _tasks(fields_of_line.get("ArrayTaskId", "0")):
            states_by_task[job, task] = state
    return states_by_task


def _code(text: str) -> tuple[int, int]:
    """Slurm writes STATUS:SIGNAL; the signal, then the status. A shell's 128 and more is a signal as well."""
    status, _, number = text.partition(":")
    code, signal = (int(part) if part.isdigit() else 0 for part in (status, number))
    return (signal or code - 128 if code > 128 else signal), code


def _tasks(text: str) -> list[int]:
    """The numbers in an array's 3, [3-5,8] or 1-7:2%4; one job alone is number 0."""
    numbers: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            numbers += range(first, last + 1, int(match[3] or 1))
    return numbers or [0]


def ask(*command: str) -> str | None:
    """Output of a Slurm program: empty where Slurm has no such job, None where there is no answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return "" if "invalid job id" in done.stderr.lower() else None
    return done.stdout


def states(arrays: Sequence[str]) -> tuple[dict[Task, JobState], set[str]]:
    """Of all jobs of these arrays that Slurm still knows; and the arrays of which it has said nothing."""
    states_by_task: dict[Task, JobState] = {}
    silent = set()
    for job in arrays:
        answer = ask("scontrol", "-o", "show", "job", job)
        states_by_task |= of_scontrol(answer or "")
        silent |= {job} if answer is None else set()
    if shutil.which("sacct"):
        accounted = of_sacct(ask("sacct", "-n", "-P", "-X", "-o", "JobID,State,ExitCode", "-j", ",".join(arrays)) or "")
        states_by_task |= {task: state for task, state in accounted.items() if state.over or task not in states_by_task}
    return states_by_task, silent


def why_ended(told: Mapping[str, str] | None = None) -> tuple[Outcome, str] | None:
    """Inside a job that has been sent SIGTERM: by whom, as a run's outcome and its reason. Slurm sends it for a cancel
    and at the time limit alike. None outside of a job."""
    told = os.environ if told is None else told
    job = told.get("SLURM_JOB_ID")
    if job is None:
        return None
    answer = ask("scontrol", "-o", "show", "job", job) or ""
    task = told.get("SLURM_ARRAY_JOB_ID", job), int(told.get("SLURM_ARRAY_TASK_ID", 0))
    state = of_scontrol(answer).get(task, UNKNOWN)
    if state.over and state.name not in ("COMPLETED", "FAILED"):
        return meaning(state)
    end = told.get("SLURM_JOB_END_TIME") or _limit(answer)
    if end is not None and time.time() >= float(end) - _LATE:
        return meaning(JobState("TIMEOUT"))
    return meaning(JobState("CANCELLED"))


def _limit(answer: str) -> float | None:
    """When a job is past its time, as seconds since 1970, from `scontrol show job`. Its EndTime is moved by a cancel,
    and its state does not tell while it is ending."""
    start = re.search(r"\bStartTime=(\S+)", answer)
    limit = re.search(r"\bTimeLimit=(?:(\d+)-)?(\d+):(\d+):(\d+)", answer)
    if start is None or limit is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in limit.groups())
    try:
        begun = datetime.fromisoformat(start[1]).timestamp()
    except ValueError:
        return None
    return begun + 86400 * days + 3600 * hours + 60 * minutes + seconds
