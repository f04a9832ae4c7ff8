"""Submit a sweep to Slurm and leave a record for every run.

Jobs with the same resource request form one array. Each job is `suite run` on its batch node, and srun starts its
ranks. A job announces its runs before it starts them, so the waiting process can write the records of a job that was
cancelled, exceeded a limit or lost its node.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from suite.config.rules import check_nodes
from suite.core.errors import InvalidRequest, MissingDependency, SuiteError
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import Record
from suite.core.resources import ROOT
from suite.runner.launch.launch_command import place_ranks
from suite.runner.launch.signals import ending_ranks
from suite.runner.runs import Run, expand
from suite.runner.slurm.arrays import ArrayJob, JobArray, ResourceRequest, group_into_arrays, status_file
from suite.runner.slurm.job_records import (
    announced_runs,
    complete_records,
    record_stamps,
    reusable_records,
    write_refusals,
)
from suite.runner.slurm.job_state import UNKNOWN, JobState, Task, outcome_of, query_slurm, termination_reason
from suite.runner.slurm.wait import wait_for_jobs

_CANCEL_LIMIT = 90.0  # seconds for cancelled jobs to end; Slurm itself grants them 30
_CANCELLED_GONE_AFTER = 3.0  # seconds without a trace of a cancelled job after which it has left the queue


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that has ended.

    Attributes:
        command: Overrides of its command line.
        job_id: Slurm's number of the job; empty if none was submitted.
        state: Last state that Slurm reported, or why nothing was submitted.
        status: Exit status of its command.
    """

    command: tuple[str, ...]
    job_id: str
    state: str
    status: int


def submit_sweep(
    commands: Sequence[Sequence[str]], *, dry_run: bool = False, report: Callable[[str], None]
) -> list[FinishedJob]:
    """Submit each command line to Slurm as a job, wait until all have ended, and leave a record for every run.

    A job is not submitted if records make all its runs superfluous, or if none of its runs can run. On an interrupt,
    the jobs of the sweep are cancelled first.

    Args:
        commands: Overrides of each command line.
        dry_run: Report the scripts and commands, and submit and write nothing. `launch.dry_run` does so for one job.
        report: Receives lines about the sweep's progress.

    Raises:
        MissingDependency: A program of Slurm is not on this machine.
    """
    finished: dict[int, FinishedJob] = {}
    jobs: dict[int, ArrayJob] = {}
    for number, command in enumerate(commands):
        job = _plan_job(command, dry_run, report)
        if isinstance(job, FinishedJob):
            finished[number] = job
        else:
            if not job.dry_run:
                check_programs()
            jobs[number] = job
    if recorded_count := sum(job.state == "has records" for job in finished.values()):
        report(f"slurm: {recorded_count} of {len(commands)} jobs have all their records")
    arrays = group_into_arrays(jobs, f"sweep-{secrets.token_hex(6)}")
    for numbers, array in arrays:
        if array.jobs[0].dry_run:
            report(array.preview())
            finished |= {number: FinishedJob(jobs[number].command, "", "dry run", Exit.OK) for number in numbers}
    submitted = [(numbers, array) for numbers, array in arrays if not array.jobs[0].dry_run]
    if submitted:
        with ending_ranks():
            results = _run_arrays([array for _, array in submitted], report)
        finished |= dict(zip((number for numbers, _ in submitted for number in numbers), results, strict=True))
    return [finished[number] for number in range(len(commands))]


def check_programs() -> None:
    """Raises MissingDependency if a program of Slurm is not on this machine."""
    for program in ("sbatch", "scontrol", "scancel"):
        if shutil.which(program) is None:
            raise MissingDependency(program, "submit from a node of a Slurm cluster, or launch=local")


def _plan_job(command: Sequence[str], dry_run: bool, report: Callable[[str], None]) -> ArrayJob | FinishedJob:
    """The job of a command line, or its result if there is nothing to submit."""
    try:
        runs = tuple(expand(command))
    except SuiteError as error:  # the other command lines continue
        report(f"refused: {error}")
        return FinishedJob(tuple(command), "", "refused", Exit.NOTHING)
    dry_run = dry_run or bool(runs[0].config.launch.dry_run)
    if not dry_run and (records := reusable_records(runs)):
        return FinishedJob(tuple(command), "", "has records", _exit_code(runs, records))
    refusal: SuiteError | None = None
    try:
        request = _resource_request(runs)
        if any(map(_may_run_on_node, runs)):
            return ArrayJob(tuple(command), runs, request, dry_run)
    except SuiteError as error:
        refusal = error
    for run in runs:
        report(f"refused: {run.label}: {headline(str(run.refusal or refusal))}")
    status = Exit.NOTHING if dry_run else _exit_code(runs, write_refusals(runs, refusal, report))
    return FinishedJob(tuple(command), "", "refused", status)


def _may_run_on_node(run: Run) -> bool:
    """Whether a node may be able to run it: a dependency that is missing here may be installed there."""
    return run.refusal is None or isinstance(run.refusal, MissingDependency)


def _resource_request(runs: Sequence[Run]) -> ResourceRequest:
    """Resources of a job with these runs: enough for the run with the most ranks."""
    launch = runs[0].config.launch
    ranks = max((run.ranks for run in runs if run.config.executor.starts_ranks and _may_run_on_node(run)), default=1)
    check_nodes(launch, ranks)
    nodes, per_node = place_ranks(ranks, launch)
    gpus = per_node if launch.gpus_per_node is None and launch.device == "cuda" else launch.gpus_per_node
    options = {
        "nodes": nodes,
        "ntasks_per_node": per_node,
        "cpus_per_task": launch.cpus_per_task or launch.threads,
        "gpus_per_node": gpus,
        "time": launch.time,
        "partition": launch.partition,
        "account": launch.account,
        "qos": launch.qos,
        "constraint": launch.constraint,
    }
    if taken := next((name for name in launch.extra or {} if name in (*options, "array", "job_name")), None):
        raise InvalidRequest(
            f"launch.extra={{{taken}: {(launch.extra or {})[taken]}}}",
            rule="further options of sbatch, without those that the suite sets itself",
            legal=f"launch.{taken}" if taken in options else "launch.extra={mem: 64G}",
        )
    options |= launch.extra or {}
    python_path = f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return ResourceRequest(options, (*map(str, launch.setup), python_path), launch.array_parallelism)


def _run_arrays(arrays: Sequence[JobArray], report: Callable[[str], None]) -> list[FinishedJob]:
    """Submit the arrays, wait for their jobs, and write the records that jobs could not write."""
    try:
        for array in arrays:
            try:
                array.submit()
            except InvalidRequest as error:  # the other arrays continue
                report(f"refused: an array of {len(array.jobs)}: {error}")
            else:
                report(f"slurm: job {array.job_id}, an array of {len(array.jobs)}, in {array.folder}")
        last_states = wait_for_jobs(arrays, report)
    except BaseException:
        if job_ids := [array.job_id for array in arrays if array.job_id]:
            query_slurm("scancel", *job_ids)
            report(f"slurm: cancelled {', '.join(job_ids)}")
            with suppress(KeyboardInterrupt):
                last_states = wait_for_jobs(arrays, report, limit=_CANCEL_LIMIT, gone_after=_CANCELLED_GONE_AFTER)
                _finish(arrays, last_states, report)
        raise
    return _finish(arrays, last_states, report)


def _finish(
    arrays: Sequence[JobArray], last_states: Mapping[Task, JobState], report: Callable[[str], None]
) -> list[FinishedJob]:
    """Write missing records; the result of every job."""
    finished = []
    for array in arrays:
        for task, job in enumerate(array.jobs):
            if array.rejection is not None:
                status = int(_exit_code(job.runs, write_refusals(job.runs, array.rejection, report)))
                finished.append(FinishedJob(job.command, "", "refused", status))
                continue
            job_id, own_status = f"{array.job_id}_{task}", array.exit_status(task)
            state = last_states.get((array.job_id, task), UNKNOWN)
            if not state.ended and own_status is not None:  # Slurm no longer reports the job
                state = JobState("COMPLETED" if own_status in tuple(Exit) else "FAILED", status=own_status)
            elif not state.ended and not announced_runs(job.runs, job_id, array.name):
                state = JobState("CANCELLED", "taken from the queue")  # Slurm drops such a task at once
            records = complete_records(
                job.runs, job_id, array.name, outcome_of(state), stamps=array.stamps, report=report
            )
            status = _exit_code(job.runs, records, completed=state.name == "COMPLETED")
            if own_status in tuple(Exit):
                status = own_status
            finished.append(FinishedJob(job.command, job_id, state.name, int(status)))
    return finished


def _exit_code(runs: Sequence[Run], records: Sequence[Record], completed: bool = True) -> Exit:
    """Exit status of a job that wrote none. `completed` is False if the job ended abnormally after its last record."""
    status = exit_code(records, runs[0].config.on_error)
    return Exit.SOME_FAILED if status is Exit.OK and not completed else status


def run_array_task(command_file: Path) -> int:
    """On a node: run the command line of this job and write its exit status.

    Slurm signals every process of a job. The command ends its ranks, and this process stays to record the reason.
    """
    task = int(os.environ["SLURM_ARRAY_TASK_ID"])
    entry = json.loads(command_file.read_text())[task]
    command, stamps = entry["command"], record_stamps(Path(entry["reports"]))
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    process = subprocess.Popen([sys.executable, "-m", "suite", "run", *command])
    status = process.wait()
    write_atomically(status_file(command_file, task), json.dumps({"status": status}).encode())
    if signals and (ending := termination_reason()) is not None:
        job_id = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}"
        complete_records(expand(command), job_id, os.environ["SLURM_JOB_NAME"], ending, stamps=stamps)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(run_array_task(Path(sys.argv[1])))
