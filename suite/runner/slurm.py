"""Command lines as Slurm jobs, submitted by submitit, with a record for every run.

A job executes its command line on its batch node, and srun starts its ranks. Jobs with the same request form an array.
A job that Slurm ends early leaves no record, or a record with the outcome `cancelled`. The waiting process then writes
the outcome that the state of the job gives.
"""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError

from suite.config.rules import check_nodes
from suite.core.errors import InvalidRequest, MissingDependency, SuiteError
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import check_access, check_folder
from suite.core.reasons import headline
from suite.core.record import Outcome, Record
from suite.core.resources import ROOT
from suite.core.values import Json
from suite.runner.ending import ending_of
from suite.runner.executors import in_process
from suite.runner.isolated import run_line
from suite.runner.launch.launch_command import place_ranks
from suite.runner.runs import Run, expand
from suite.runner.store import Store

_MAX_ARRAY = 1000  # Slurm's default MaxArraySize is 1001
_QUERY_TIMEOUT = 30.0  # seconds
_POLL_INTERVAL = 1.0, 15.0  # seconds between two queries, at first and at most
GONE_AFTER = 60.0  # seconds after which a job has ended that is missing in Slurm's answers
_CANCEL_LIMIT = 90.0  # seconds for cancelled jobs to end; Slurm itself grants them 30
# states in which a job has ended, with the outcome of its runs without a result
_ENDED = {
    **dict.fromkeys(("COMPLETED", "FAILED", "LAUNCH_FAILED"), Outcome.FAILED),
    **dict.fromkeys(("CANCELLED", "REVOKED"), Outcome.CANCELLED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), Outcome.TIMEOUT),
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), Outcome.LOST_RANK),
    "OUT_OF_MEMORY": Outcome.OOM,
}
# last states of a job that was taken out of the queue; Slurm may put a preempted job back into it
_QUEUED = ("", "PENDING", "PREEMPTED")
_TAKEN = ("array", "job_name", "output", "error", "open_mode")  # options of sbatch that submitit sets


@dataclass
class Job:
    """A command line as a job.

    Attributes:
        command: Its overrides.
        runs: Runs that it expands to; none if it does not compose.
        before: For each run the newest record at the time of the submission.
        request: Parameters of submitit for its resources; None if nothing is submitted.
        refusal: Reason for which none of its runs can start, unless a run has its own.
        handle: The submitted job.
        state: Last state that Slurm reported.
    """

    command: Sequence[str]
    runs: Sequence[Run] = ()
    before: Sequence[Record | None] = ()
    request: Mapping[str, Json] | None = None
    refusal: SuiteError | None = None
    handle: submitit.Job[int] | None = None
    state: str = ""

    @property
    def id(self) -> str:
        return self.handle.job_id if self.handle else ""


class _Executor(submitit.SlurmExecutor):
    """An executor that also writes scripts on a machine without Slurm."""

    @classmethod
    def affinity(cls) -> int:
        return 1

    def script(self, jobs: int) -> str:
        """The sbatch script of an array."""
        self.parameters["map_count"] = jobs
        return str(self._make_submission_file_text(self._submitit_command_str, ""))


def submit(commands: Sequence[Sequence[str]], *, dry_run: bool = False, report: Callable[[str], None]) -> list[Exit]:
    """Submit each command line as a job, wait until all have ended, and leave a record for every run.

    A job is not submitted if records make all its runs superfluous, or if none of its runs can run. On an interrupt,
    the jobs of this call are cancelled first.

    Args:
        commands: Overrides of each command line.
        dry_run: Report the scripts and commands, and submit and write nothing.
        report: Receives lines about the progress.

    Returns:
        The exit status of each command line.

    Raises:
        InvalidRequest: Records cannot be written to the reports folder.
        MissingDependency: A program of Slurm is not on this machine.
    """
    name, stores = f"suite-{secrets.token_hex(6)}", cache(Store)
    jobs = [_plan(command, stores, report) for command in commands]
    for folder in {run.config.reports for job in jobs for run in job.runs}:
        (check_access if dry_run else check_folder)(Path(folder), "reports")
    arrays = _arrays([job for job in jobs if job.request is not None])
    if dry_run:
        for array in arrays:
            report(_preview(array, name))
        return [Exit.OK if job.runs and not job.refusal else Exit.NOTHING for job in jobs]
    for program in ("sbatch", "srun", "squeue", "scancel") if arrays else ():
        if shutil.which(program) is None:
            raise MissingDependency(program, "submit from a node of a Slurm cluster, or launch=local")
    try:
        for array in arrays:
            _submit(array, name, report)
        _wait(jobs, name, report)
    except BaseException:
        if arrays:
            _ask_slurm("scancel", f"--name={name}")
            report(f"slurm: cancelled {name}")
            _wait(jobs, name, report, limit=_CANCEL_LIMIT)
            _finish(jobs, report)
        raise
    return _finish(jobs, report)


def _plan(command: Sequence[str], stores: Callable[[Path], Store], report: Callable[[str], None]) -> Job:
    """The job of a command line."""
    job = Job(command)
    try:
        job.runs = expand(command)
        found = [stores(Path(run.config.reports)) for run in job.runs]
        job.before = [store.newest(run.settings) for store, run in zip(found, job.runs, strict=True)]
        if all(map(_reusable, found, job.runs, job.before)):
            report(f"slurm: all records exist: {shlex.join(command)}")
        else:
            request = _request(job.runs)
            job.refusal = None if any(map(_may_run_on_node, job.runs)) else job.runs[0].refusal
            job.request = None if job.refusal else request
    except SuiteError as error:  # the other command lines continue
        job.refusal = error
    for run in job.runs if job.refusal else ():
        report(f"refused: {run.label}: {headline(str(run.refusal or job.refusal))}")
    if not job.runs:
        report(f"refused: {job.refusal}")
    return job


def _may_run_on_node(run: Run) -> bool:
    """Whether a node may be able to run it: a dependency that is missing here may be installed there."""
    return run.refusal is None or isinstance(run.refusal, MissingDependency)


def _reusable(store: Store, run: Run, newest: Record | None) -> Record | None:
    """The record that makes a run superfluous. A node that made it may be another machine than this one."""
    here = json.loads(json.dumps(run.circumstances)).items()
    alike = newest and all(newest.provenance.get(name) == value for name, value in here if name != "machine")
    return store.reusable(run, key=newest.key if newest and alike else run.key)


def _request(runs: Sequence[Run]) -> dict[str, Json]:
    """Parameters of submitit for a job with these runs, for the run with the most ranks."""
    launch = runs[0].config.launch
    ranks = max((run.ranks for run in runs if run.config.executor.starts_ranks and _may_run_on_node(run)), default=1)
    check_nodes(launch, ranks)
    nodes, per_node = place_ranks(ranks, launch)
    options: dict[str, Json] = {
        "nodes": nodes,
        "ntasks_per_node": per_node,
        "cpus_per_task": launch.cpus_per_task or launch.threads,
        "gpus_per_node": per_node if launch.gpus_per_node is None and launch.device == "cuda" else launch.gpus_per_node,
        **launch.model_dump(include={"time", "partition", "account", "qos", "constraint"}),
    }
    extra = launch.extra or {}
    if taken := next((name for name in extra if name.replace("-", "_") in (*options, *_TAKEN)), None):
        raise InvalidRequest(
            "launch.extra",
            {taken: extra[taken]},
            rule="further options of sbatch, without those that the suite sets itself",
            legal=f"launch.{taken}" if taken in options else "launch.extra={mem: 64G}",
        )
    python_path = f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return {
        "additional_parameters": {name: value for name, value in {**options, **extra}.items() if value is not None},
        # Slurm sends SIGTERM to every process of a job: the shell waits until the command has ended its ranks
        "setup": [*launch.setup, python_path, "trap : TERM"],
        "array_parallelism": launch.array_parallelism,
    }


def _arrays(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    """Jobs with the same request and folder, in groups of the largest size of an array."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(repr((job.runs[0].config.reports, job.request)), []).append(job)
    return [group[i : i + _MAX_ARRAY] for group in groups.values() for i in range(0, len(group), _MAX_ARRAY)]


def _executor(array: Sequence[Job], name: str) -> _Executor:
    executor = _Executor(Path(array[0].runs[0].config.reports).absolute() / "slurm" / name)
    executor.update_parameters(
        job_name=name,
        stderr_to_stdout=True,
        signal_delay_s=0,  # no signal before the time limit
        use_srun=False,  # the command starts its ranks with srun
        **(array[0].request or {}),
    )
    return executor


def _preview(array: Sequence[Job], name: str) -> str:
    """The sbatch script of an array, followed by the command line of each job as a comment."""
    lines = [f"# {number}: suite run {shlex.join(_on_node(job))}" for number, job in enumerate(array)]
    return "\n".join([f"# sbatch, an array of {len(array)}", _executor(array, name).script(len(array)), *lines])


def _on_node(job: Job) -> list[str]:
    """The command line that executes the runs of a job instead of submitting them."""
    return [*job.command, "launch.submit=false"]


def _submit(array: Sequence[Job], name: str, report: Callable[[str], None]) -> None:
    """Submit an array. The jobs of an array that sbatch rejects have its message as their refusal."""
    executor = _executor(array, name)
    try:
        handles = executor.map_array(run_line, list(map(_on_node, array)))
    except FailedJobError as error:  # the other arrays continue
        refusal = InvalidRequest(
            " ".join(str(error).split()) or "sbatch failed",
            rule="sbatch accepts the job",
            legal="launch.partition, nodes and time as sinfo lists them",
        )
        report(f"refused: an array of {len(array)}: {refusal}")
        for job in array:
            job.refusal = refusal
        return
    for job, handle in zip(array, handles, strict=True):
        job.handle, job.state = handle, "PENDING"
    report(f"slurm: job {array[0].id.partition('_')[0]}, an array of {len(array)}, in {executor.folder}")


def _wait(jobs: Sequence[Job], name: str, report: Callable[[str], None], limit: float = float("inf")) -> None:
    """Wait until all submitted jobs have ended, at most `limit` seconds, and note their states.

    A job that Slurm no longer knows has ended. A busy or restarting controller, which does not answer, ends no job.
    """
    waiting = [job for job in jobs if job.handle]
    missing: dict[str, float] = {}  # when Slurm first answered without the job
    total, pause, end, last_line = len(waiting), _POLL_INTERVAL[0], time.monotonic() + limit, ""
    while waiting and time.monotonic() < end:
        answer = _ask_slurm("squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i %T")
        if answer is not None:
            now, states = time.monotonic(), dict(line.split() for line in answer.splitlines())
            missing = {job.id: missing.get(job.id, now) for job in waiting if job.id not in states}
            for job in waiting:
                job.state = states.get(job.id, job.state)
            waiting = [job for job in waiting if not _has_ended(job, now - missing.get(job.id, now))]
        counts = Counter(job.state.lower() for job in waiting) + Counter(ended=total - len(waiting))
        line = ", ".join(f"{count} {state}" for state, count in counts.items())
        line += ", Slurm does not answer" if answer is None else ""
        if line != last_line:
            report(f"slurm: {line}")
            last_line, pause = line, _POLL_INTERVAL[0]
        if waiting:
            time.sleep(pause)
            pause = min(pause * 1.3, _POLL_INTERVAL[1])
    for job in jobs:  # accounts remember a job longer than the queue does
        if job.handle and job.state not in _ENDED and (state := job.handle.state.split()[0]) in _ENDED:
            job.state = state


def _has_ended(job: Job, missing: float) -> bool:
    """Whether a job has ended that Slurm's answers have not listed for `missing` seconds."""
    assert job.handle is not None
    gone = missing >= GONE_AFTER or (missing > 0 and job.handle.paths.result_pickle.exists())
    return gone or job.state in _ENDED


def _ask_slurm(*command: str) -> str | None:
    """Output of a program of Slurm; None if it fails or times out."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _finish(jobs: Sequence[Job], report: Callable[[str], None]) -> list[Exit]:
    """Write the missing records of all jobs. Returns the exit status of each."""
    stores, statuses = cache(Store), list[Exit]()
    for job in jobs:
        records = [
            _record(job, run, before, stores(Path(run.config.reports)), report)
            for run, before in zip(job.runs, job.before, strict=True)
        ]
        statuses.append(exit_code(records, job.runs[0].config.on_error) if job.runs else Exit.NOTHING)
    return statuses


def _record(job: Job, run: Run, before: Record | None, store: Store, report: Callable[[str], None]) -> Record:
    """The record of a run after the end of its job: that of the job, an earlier one that suffices, or a new one."""
    outcome = _ENDED.get(job.state, Outcome.CANCELLED if job.state in _QUEUED else Outcome.LOST_RANK)
    reason = f"job {job.id}: its last state in Slurm is {job.state}" if job.handle else "the job was not submitted"
    newest = store.newest(run.settings)
    if newest and (before is None or newest.provenance != before.provenance or job.state == "COMPLETED"):
        if newest.outcome is Outcome.CANCELLED and outcome not in (Outcome.CANCELLED, Outcome.FAILED):
            newest = replace(newest, outcome=outcome, reason=reason)  # the job knew of a signal alone
            store.write(newest)
        return newest
    if record := _reusable(store, run, before):
        return record
    refusal = None if job.handle else run.refusal or job.refusal
    record = in_process.record_of(run, ending_of(refusal) if refusal else (outcome, reason))
    record = replace(record, key=before.key if before else run.key)
    if before is None or before.outcome is not Outcome.OK:
        store.write(record)
    else:
        report(f"slurm: {run.label}: {record.outcome}, {headline(record.reason)}; the record of an earlier run stays")
    return record
