"""Submit a sweep to Slurm.

Every run of every job has a record in the end. Jobs of one shape (nodes, tasks, cores, GPUs) are one array; each is
`suite run` on its batch node, whose ranks srun starts. A job first announces the runs that it is going to make. So
the waiting process can write missing records, for a job that was cancelled, ran out of time or memory, or lost its
node."""

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
from typing import Any

from suite.config.validate.launch import nodes_have_places
from suite.core.errors import InvalidRequest, MissingDependency, SuiteError
from suite.core.exit_codes import Exit, exit_code
from suite.core.files import write_atomically
from suite.core.reasons import headline
from suite.core.record import Record
from suite.core.resources import ROOT
from suite.runner.launch.launch_command import spread
from suite.runner.launch.signals import ending_ranks
from suite.runner.runs import Run, expand
from suite.runner.slurm.arrays import Array, ArrayJob, arranged, exit_file
from suite.runner.slurm.job_records import begun, leave, refused, stamps, standing
from suite.runner.slurm.job_state import UNKNOWN, JobState, Task, ask, meaning, why_ended
from suite.runner.slurm.wait import waited

_LEAVE = 90.0  # seconds for cancelled jobs to end, of which Slurm itself grants 30
_TAKEN = 3.0  # seconds for which Slurm does not know a job that was cancelled here: then it is out of the queue


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """One job: its overrides, its number (empty where none was needed), Slurm's word, and its exit status."""

    command: tuple[str, ...]
    job: str
    state: str
    status: int


def submitted(
    commands: Sequence[Sequence[str]], *, dry_run: bool = False, say: Callable[[str], None]
) -> list[FinishedJob]:
    """Gives each command line to Slurm as a job, waits until all have ended, and leaves a record for every run.

    A job whose runs all have records that stand is not submitted, nor is one that cannot run, whose records say why.
    dry_run, as launch.dry_run for one job: says the scripts and the commands, submits nothing and leaves nothing.
    Interrupted, it cancels its own jobs first. Raises MissingDependency.
    """
    ended: dict[int, FinishedJob] = {}
    jobs: dict[int, ArrayJob] = {}
    for number, command in enumerate(commands):
        job_id = _job(command, dry_run, say)
        if isinstance(job_id, FinishedJob):
            ended[number] = job_id
        else:
            check(job_id.dry)
            jobs[number] = job_id
    if recorded_count := sum(one.state == "has records" for one in ended.values()):
        say(f"slurm: {recorded_count} of {len(commands)} jobs have all their records")
    arrays = arranged(jobs, f"sweep-{secrets.token_hex(6)}")
    for part, array in arrays:
        if array.jobs[0].dry:
            say(array.told())
            ended |= {number: FinishedJob(jobs[number].command, "", "dry run", Exit.OK) for number in part}
    real = [(part, array) for part, array in arrays if not array.jobs[0].dry]
    if real:
        with ending_ranks():
            made_arrays = _made([array for _, array in real], say)
        ended |= dict(zip((number for part, _ in real for number in part), made_arrays, strict=True))
    return [ended[number] for number in range(len(commands))]


def check(dry_run: bool = False) -> None:
    """Raises MissingDependency for a missing package or program; a script can be written anywhere."""
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise MissingDependency("submitit", "make install, or pip install submitit") from error
    for program in () if dry_run else ("sbatch", "scontrol", "scancel"):
        if shutil.which(program) is None:
            raise MissingDependency(program, "submit from a node of a Slurm cluster, or launch=local")


def _job(command: Sequence[str], dry_run: bool, say: Callable[[str], None]) -> ArrayJob | FinishedJob:
    """The jobs of a command line, or their outcome where nothing is to be submitted."""
    try:
        runs = tuple(expand(command))
    except SuiteError as error:  # the others go on
        say(f"refused: {error}")
        return FinishedJob(tuple(command), "", "refused", Exit.NOTHING)
    dry = dry_run or bool(runs[0].config.launch.dry_run)
    if not dry and (records := standing(runs)):
        return FinishedJob(tuple(command), "", "has records", _code(runs, records))
    refusal: SuiteError | None = None
    try:
        options = _options(runs)
        if any(map(_possible, runs)):
            return ArrayJob(tuple(command), runs, options, dry)
    except SuiteError as error:
        refusal = error
    for run in runs:
        say(f"refused: {run.label}: {headline(str(run.refusal or refusal))}")
    status = Exit.NOTHING if dry else _code(runs, refused(runs, refusal, say))
    return FinishedJob(tuple(command), "", "refused", status)


def _possible(run: Run) -> bool:
    """Whether a node may make it: one may have what is missing here."""
    return run.refusal is None or isinstance(run.refusal, MissingDependency)


def _options(runs: Sequence[Run]) -> dict[str, Any]:
    """The sbatch request of a job with these runs: room for the run with the most ranks."""
    launch = runs[0].config.launch
    ranked = [run for run in runs if run.outline.executor.starts_ranks and _possible(run)]
    ranks = max((run.ranks for run in ranked), default=1)
    nodes_have_places(launch, ranks)
    nodes, per_node = spread(ranks, launch)
    gpus, extra, root = launch.gpus_per_node, launch.extra or {}, shlex.quote(str(ROOT))
    return {
        "nodes": nodes,
        "ntasks_per_node": per_node,
        "cpus_per_task": launch.cpus_per_task or launch.threads,
        "gpus_per_node": per_node if gpus is None and launch.device == "cuda" else gpus,
        "time": launch.time,
        "partition": launch.partition,
        "account": launch.account,
        "qos": launch.qos,
        "constraint": launch.constraint,
        "array_parallelism": launch.array_parallelism,
        "setup": [*map(str, launch.setup), f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"],
        "additional_parameters": {str(name): value for name, value in extra.items()},
    }


def _made(arrays: Sequence[Array], say: Callable[[str], None]) -> list[FinishedJob]:
    """Submits, waits, and leaves the records that jobs could not."""
    try:
        for array in arrays:
            try:
                array.submit()
            except InvalidRequest as error:  # the others go on
                say(f"refused: an array of {len(array.jobs)}: {error}")
            else:
                say(f"slurm: job {array.job}, an array of {len(array.jobs)}, in {array.list.parent}")
        last = waited(arrays, say)
    except BaseException:
        if numbers := [array.job for array in arrays if array.job]:
            ask("scancel", *numbers)
            say(f"slurm: cancelled {', '.join(numbers)}")
            with suppress(KeyboardInterrupt):
                _closed(arrays, waited(arrays, say, limit=_LEAVE, gone=_TAKEN), say)
        raise
    return _closed(arrays, last, say)


def _closed(arrays: Sequence[Array], last: Mapping[Task, JobState], say: Callable[[str], None]) -> list[FinishedJob]:
    """Outcome of the jobs; each of their runs has a record now."""
    ended = []
    for array in arrays:
        for task, job in enumerate(array.jobs):
            if array.refusal is not None:
                status: int = _code(job.runs, refused(job.runs, array.refusal, say))
                ended.append(FinishedJob(job.command, "", "refused", status))
                continue
            name, state, task_status = f"{array.job}_{task}", last.get((array.job, task), UNKNOWN), array.status(task)
            if not state.over and task_status is not None:  # Slurm has forgotten it
                state = JobState("COMPLETED" if task_status in tuple(Exit) else "FAILED", status=task_status)
            if not state.over and task_status is None and not begun(job.runs, name, array.name):
                state = JobState("CANCELLED", "taken from the queue")  # Slurm forgets at once a task that had not begun
            records = leave(job.runs, name, array.name, meaning(state), before=array.before, say=say)
            status = (
                task_status if task_status in tuple(Exit) else _code(job.runs, records, well=state.name == "COMPLETED")
            )
            ended.append(FinishedJob(job.command, name, state.name, int(status)))
    return ended


def _code(runs: Sequence[Run], records: Sequence[Record], well: bool = True) -> Exit:
    """The exit status of a job that has not said its own. well: whether it has ended as jobs should."""
    status = exit_code(records, runs[0].outline.on_error)
    return Exit.SOME_FAILED if status is Exit.OK and not well else status


# -- a job on its node ----------------------------------------------------------------------------------------------


def job(listed: Path) -> int:
    """Runs the command line of this job of an array, and leaves its exit status. Slurm sends its signals to every
    process of a job: the command ends its ranks, and this one stays to say why."""
    task = int(os.environ["SLURM_ARRAY_TASK_ID"])
    line = json.loads(listed.read_text())[task]
    command, before = line["command"], stamps(Path(line["reports"]))
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ended.append(number))
    process = subprocess.Popen([sys.executable, "-m", "suite", "run", *command])
    status = process.wait()
    write_atomically(exit_file(listed, task), json.dumps({"status": status}).encode())
    if ended and (reason := why_ended()) is not None:
        runs = expand(command)
        name = os.environ["SLURM_JOB_NAME"]
        leave(runs, f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}", name, reason, before=before)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(job(Path(sys.argv[1])))
