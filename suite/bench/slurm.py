"""Decides how a sweep becomes jobs of Slurm, and that every run of every job has a record in the end.

Jobs of one shape (nodes, tasks, cores, GPUs) are one array; each is `python -m suite` on its batch node, whose ranks
srun starts. A job says first which runs it is going to make, so that whoever waits for it can write the records that it
could not: of a job that was cancelled, ran out of time or memory, or lost its node. Nothing is pickled: an array is a
list of command lines.
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
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.bench.experiment import Run, expand
from suite.bench.interrupt import ending_ranks
from suite.bench.slurm_records import begun, leave, standing
from suite.bench.slurm_state import UNKNOWN, State, ask, meaning, states, why_ended
from suite.bench.starter import spread
from suite.core.build import TARGET
from suite.core.errors import MissingDependency, Refused, SuiteError
from suite.core.exits import Exit, exit_code
from suite.core.files import write_atomically
from suite.core.record import Record

_ROOT = Path(__file__).resolve().parents[2]
_LARGEST = 1000  # jobs of an array: a cluster takes 1001 unless it says otherwise
_POLL = 1.0, 15.0  # seconds between two looks, at first and at most
_FORGOTTEN = 4  # looks at a job that Slurm does not know: then it has ended
_LEAVE = 90.0  # seconds for cancelled jobs to end, of which Slurm itself grants 30


@dataclass(frozen=True, slots=True)
class Ended:
    """One job: its overrides, its number (empty where none was needed), Slurm's word, and its exit status."""

    command: tuple[str, ...]
    job: str
    state: str
    status: int


@dataclass(frozen=True, slots=True)
class Job:
    """A command line that has runs to make. options: what is asked of sbatch"""

    command: tuple[str, ...]
    runs: tuple[Run, ...]
    options: Mapping[str, Any]


def submitted(commands: Sequence[Sequence[str]], *, dry_run: bool = False, say: Callable[[str], None]) -> list[Ended]:
    """Gives each command line to Slurm as a job, waits until all have ended, and leaves a record for every run.

    A job whose runs all have records that stand is not submitted. dry_run: says the scripts and the commands, and
    submits nothing. Interrupted, it cancels its own jobs first. Raises MissingDependency, and Refused for options that
    sbatch does not have.
    """
    check(dry_run)
    ended: dict[int, Ended] = {}
    jobs: dict[int, Job] = {}
    for number, command in enumerate(commands):
        try:
            job = _job(command)
        except SuiteError as error:  # the others go on
            say(f"refused: {error}")
            ended[number] = Ended(tuple(command), "", "refused", Exit.NOTHING)
            continue
        if not dry_run and (records := standing(job.runs)):
            ended[number] = Ended(job.command, "", "has records", _status(job, records))
        else:
            jobs[number] = job
    if kept := sum(one.state == "has records" for one in ended.values()):
        say(f"slurm: {kept} of {len(commands)} jobs have all their records")
    parts = _shapes(jobs)
    name = f"sweep-{secrets.token_hex(6)}"
    arrays = [Array(_folder(jobs, name), place, [jobs[n] for n in part]) for place, part in enumerate(parts)]
    if dry_run:
        for array in arrays:
            say(array.told())
        ended |= {number: Ended(job.command, "", "dry run", Exit.OK) for number, job in jobs.items()}
        return [ended[number] for number in range(len(commands))]
    with ending_ranks():
        found = _made(arrays, say) if arrays else []
    ended |= dict(zip((number for part in parts for number in part), found, strict=True))
    return [ended[number] for number in range(len(commands))]


def check(dry_run: bool = False) -> None:
    """Raises MissingDependency for what a submission needs; a script can be written anywhere."""
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise MissingDependency("submitit", "make install, or pip install submitit") from error
    for program in () if dry_run else ("sbatch", "scontrol", "scancel"):
        if shutil.which(program) is None:
            raise MissingDependency(program, "submit from a node of a Slurm cluster, or launch=local")


def _job(command: Sequence[str]) -> Job:
    runs = tuple(expand(command))
    return Job(tuple(command), runs, _options(runs))


def _options(runs: Sequence[Run]) -> dict[str, Any]:
    """What a job of these runs asks sbatch for: room for the run with the most ranks."""
    launch = runs[0].config["launch"]
    ranks = max((run.ranks for run in runs if TARGET not in run.config["executor"]), default=1)
    nodes, per_node = spread(ranks, launch)
    gpus, extra, root = launch["gpus_per_node"], launch["extra"] or {}, shlex.quote(str(_ROOT))
    if not isinstance(extra, Mapping):
        raise Refused(f"launch.extra={extra}", rule="options of sbatch, by name", legal="launch.extra={mem: 8G}")
    return {
        "nodes": nodes,
        "ntasks_per_node": per_node,
        "cpus_per_task": launch["cpus_per_task"] or launch["threads"],
        "gpus_per_node": per_node if gpus is None and launch["device"] == "cuda" else gpus,
        **{name: launch[name] for name in ("time", "partition", "account", "qos", "constraint", "array_parallelism")},
        "setup": [*map(str, launch["setup"]), f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"],
        "additional_parameters": {str(name): value for name, value in extra.items()},
    }


def _shapes(jobs: Mapping[int, Job]) -> list[list[int]]:
    """The numbers of jobs that ask for the same, so that they are one array."""
    found: dict[str, list[int]] = {}
    for number, job in jobs.items():
        found.setdefault(json.dumps(job.options, sort_keys=True, default=str), []).append(number)
    return [part[at : at + _LARGEST] for part in found.values() for at in range(0, len(part), _LARGEST)]


def _folder(jobs: Mapping[int, Job], name: str) -> Path:
    """What a sweep leaves beside records: its scripts, its command lines and what its jobs print."""
    first = next(iter(jobs.values()))
    return Path(first.runs[0].config["reports"]).absolute() / "slurm" / name


# -- arrays ---------------------------------------------------------------------------------------------------------


class Array:
    """Jobs of one shape: a script, and a file with their command lines."""

    job = ""  # its number, once it is submitted

    def __init__(self, folder: Path, place: int, jobs: Sequence[Job]) -> None:
        self.jobs, self.list = jobs, folder / f"array-{place}.json"
        self.name = f"suite-{folder.name.rpartition('-')[2]}-{place}"
        self.executor = _executor(folder, self._line())
        self.executor.update_parameters(
            **{name: value for name, value in jobs[0].options.items() if value is not None},
            job_name=self.name,
            stderr_to_stdout=True,
            use_srun=False,  # the job is a parent of ranks, not one of them
            wckey=None,
        )
        self.executor.parameters["map_count"] = len(jobs)

    def _line(self) -> str:
        """exec: the job's own process hears Slurm's signals, and has the time that Slurm grants."""
        return f"exec {shlex.quote(sys.executable)} -m suite.bench.slurm {shlex.quote(str(self.list))}"

    def told(self) -> str:
        """The script, and the commands that its jobs run."""
        lines = [f"# {n}: python -m suite {shlex.join(line)}" for n, line in enumerate(self._commands())]
        return "\n".join([f"# sbatch, an array of {len(self.jobs)}", self.executor.script(), *lines])

    def _commands(self) -> list[list[str]]:
        return [[*job.command, "launch.submit=false"] for job in self.jobs]

    def submit(self) -> None:
        write_atomically(self.list, json.dumps(self._commands(), indent=1).encode())
        self.job = self.executor.hand_in()

    def status(self, task: int) -> int | None:
        """The exit status that a job has left."""
        try:
            return int(json.loads(_exit_file(self.list, task).read_text())["status"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _executor(folder: Path, line: str) -> Any:
    """submitit's executor for Slurm, whose jobs run a command line and no pickle."""
    import submitit

    class Lines(submitit.SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 2  # a script is written without Slurm too

        def script(self) -> str:
            return str(self._make_submission_file_text(line, ""))

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            text = str(super()._make_submission_file_text(command, uid))
            # submitit's early signal would reach the ranks, which it would end
            return "".join(part for part in text.splitlines(True) if not part.startswith("#SBATCH --signal"))

        def hand_in(self) -> str:
            self.folder.mkdir(parents=True, exist_ok=True)
            return str(self._submit_command(line).job_id)

    return Lines(folder=folder)


def _exit_file(listed: Path, task: int) -> Path:
    return listed.with_name(f"{listed.stem}-{task}.exit")


# -- waiting --------------------------------------------------------------------------------------------------------


def _made(arrays: Sequence[Array], say: Callable[[str], None]) -> list[Ended]:
    """Submits, waits, and leaves the records that jobs could not."""
    try:
        for array in arrays:
            array.submit()
            say(f"slurm: job {array.job}, an array of {len(array.jobs)}, in {array.list.parent}")
        last = _waited(arrays, say)
    except BaseException:
        if numbers := [array.job for array in arrays if array.job]:
            ask("scancel", *numbers)
            say(f"slurm: cancelled {', '.join(numbers)}")
            with suppress(KeyboardInterrupt):
                _closed(arrays, _waited(arrays, say, limit=_LEAVE))
        raise
    return _closed(arrays, last)


def _waited(
    arrays: Sequence[Array], say: Callable[[str], None], limit: float = float("inf")
) -> dict[tuple[str, int], State]:
    """The state of every job, when all have ended or `limit` seconds are over. Says a line when something changes."""
    tasks = [(array.job, task) for array in arrays if array.job for task in range(len(array.jobs))]
    known: dict[tuple[str, int], State] = {}
    missed: Counter[tuple[str, int]] = Counter()
    pause, end, said = _POLL[0], time.monotonic() + limit, ""
    while True:
        active = [task for task in tasks if not known.get(task, UNKNOWN).over and missed[task] < _FORGOTTEN]
        found = states(sorted({job for job, _ in active})) if active else {}
        for task in active:
            missed[task] = 0 if task in found else missed[task] + 1
            known[task] = found.get(task, known.get(task, UNKNOWN))
        done = [task for task in tasks if known[task].over or missed[task] >= _FORGOTTEN]
        counts = Counter(known[task].name.lower() for task in tasks if task not in set(done))
        line = ", ".join([*(f"{count} {name}" for name, count in sorted(counts.items())), f"{len(done)} ended"])
        if line != said:
            say(f"slurm: {line}")
            said, pause = line, _POLL[0]
        if len(done) == len(tasks) or time.monotonic() > end:
            return known
        time.sleep(pause)
        pause = min(pause * 1.3, _POLL[1])


def _closed(arrays: Sequence[Array], last: Mapping[tuple[str, int], State]) -> list[Ended]:
    """What has come of the jobs, each of whose runs has a record now."""
    ended = []
    for array in arrays:
        for task, job in enumerate(array.jobs):
            state, told = last.get((array.job, task), UNKNOWN), array.status(task)
            if state is UNKNOWN and told is not None:  # Slurm has forgotten it
                state = State("COMPLETED" if told in tuple(Exit) else "FAILED", status=told)
            if not state.over and told is None and not begun(job.runs, f"{array.job}_{task}", array.name):
                state = State("CANCELLED", "taken from the queue")  # Slurm forgets at once a task that had not begun
            outcome, why = meaning(state)
            records = leave(job.runs, f"{array.job}_{task}", array.name, outcome, why)
            status = told if told in tuple(Exit) else _status(job, records)
            ended.append(Ended(job.command, f"{array.job}_{task}", state.name, int(status)))
    return ended


def _status(job: Job, records: Sequence[Record]) -> Exit:
    """The exit status of a job that has not said its own."""
    return exit_code(records, job.runs[0].config["on_error"])


# -- a job on its node ----------------------------------------------------------------------------------------------


def job(listed: Path) -> int:
    """Runs the command line of this job of an array, and leaves its exit status. Slurm sends its signals to every
    process of a job: the command ends its ranks, and this one stays to say why."""
    task = int(os.environ["SLURM_ARRAY_TASK_ID"])
    command = json.loads(listed.read_text())[task]
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ended.append(number))
    process = subprocess.Popen([sys.executable, "-m", "suite", *command])
    status = process.wait()
    write_atomically(_exit_file(listed, task), json.dumps({"status": status}).encode())
    if ended and (found := why_ended()) is not None:
        runs = expand(command)
        name = os.environ["SLURM_JOB_NAME"]
        leave(runs, f"{os.environ['SLURM_ARRAY_JOB_ID']}_{task}", name, *found)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(job(Path(sys.argv[1])))
