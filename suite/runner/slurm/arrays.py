"""Slurm job arrays: jobs of one shape, with a script and a file of command lines.

Nothing is pickled: of submitit only the script and the submission are taken.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.values import Json
from suite.runner.runs import Run
from suite.runner.slurm.job_records import Stamps, stamps

_LARGEST = 1000  # jobs of an array: a cluster takes 1001 unless it says otherwise


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """A command line that has runs to make.

    Attributes:
        options: The sbatch request.
        dry: Its script is only told.
    """

    command: tuple[str, ...]
    runs: tuple[Run, ...]
    options: Mapping[str, Json]
    dry: bool = False

    @property
    def reports(self) -> Path:
        return Path(self.runs[0].outline.reports)


def arranged(jobs: Mapping[int, ArrayJob], name: str) -> list[tuple[list[int], Array]]:
    """Jobs that ask for the same are one array: their numbers, and it. name: of the folder beside records that keeps
    what a sweep leaves: scripts, command lines, and what jobs print."""
    indices_by_resources: dict[str, list[int]] = {}
    for number, job in jobs.items():
        shape = json.dumps([job.dry, job.options], sort_keys=True, default=str)
        indices_by_resources.setdefault(shape, []).append(number)
    parts = [part[at : at + _LARGEST] for part in indices_by_resources.values() for at in range(0, len(part), _LARGEST)]
    folders = [job.reports.absolute() / "slurm" / name for job in jobs.values()][:1]
    return [(part, Array(folders[0], place, [jobs[n] for n in part])) for place, part in enumerate(parts)]


class Array:
    """Jobs of one shape: a script, and a file with their command lines."""

    job = ""  # its number, once it is submitted
    refusal: InvalidRequest | None = None  # what sbatch has said to it

    def __init__(self, folder: Path, place: int, jobs: Sequence[ArrayJob]) -> None:
        self.jobs, self.list = jobs, folder / f"array-{place}.json"
        self.name = f"suite-{folder.name.rpartition('-')[2]}-{place}"
        self.before: Stamps = {}
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
        return f"exec {shlex.quote(sys.executable)} -m suite.runner.slurm.submit {shlex.quote(str(self.list))}"

    def told(self) -> str:
        """The script, and the commands that its jobs run."""
        lines = [f"# {n}: suite run {shlex.join(line)}" for n, line in enumerate(self._commands())]
        return "\n".join([f"# sbatch, an array of {len(self.jobs)}", self.executor.script(), *lines])

    def _commands(self) -> list[list[str]]:
        return [[*job.command, "launch.submit=false"] for job in self.jobs]

    def submit(self) -> None:
        """Raises InvalidRequest, with sbatch's own words, where the cluster does not take it."""
        from submitit.core.utils import FailedJobError

        folders = [str(job.reports) for job in self.jobs]
        self.before = {path: stamp for folder in set(folders) for path, stamp in stamps(Path(folder)).items()}
        lines = [{"command": c, "reports": f} for c, f in zip(self._commands(), folders, strict=True)]
        write_atomically(self.list, json.dumps(lines, indent=1).encode())
        try:
            self.job = self.executor.hand_in()
        except FailedJobError as error:
            said = " ".join(str(error).split()) or "no reason"
            self.refusal = InvalidRequest(
                said,
                rule="a job is one that sbatch takes",
                legal="launch.partition, nodes and time as sinfo lists them",
            )
            raise self.refusal from error

    def status(self, task: int) -> int | None:
        """The exit status that a job has left."""
        try:
            return int(json.loads(exit_file(self.list, task).read_text())["status"])
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


def exit_file(listed: Path, task: int) -> Path:
    return listed.with_name(f"{listed.stem}-{task}.exit")
