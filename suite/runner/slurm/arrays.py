"""Slurm job arrays: one sbatch script and one file of command lines for jobs with the same resource request."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import StrictUndefined, Template

from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.core.values import Json
from suite.runner.runs import Run
from suite.runner.slurm.job_records import Stamps, record_stamps

_MAX_ARRAY_SIZE = 1000  # Slurm's default MaxArraySize is 1001
_TEMPLATE = Path(__file__).with_name("array.sbatch.j2")


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Resources and shell setup that a job requests from sbatch.

    Attributes:
        options: Options of sbatch by name. An option that is None is left out; one that is True has no value.
        setup: Shell lines that run before the command.
        parallelism: Jobs of an array that may run at the same time.
    """

    options: Mapping[str, Json]
    setup: tuple[str, ...]
    parallelism: int


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """One `suite run` command line as a job of an array.

    Attributes:
        command: Overrides of the command line.
        runs: Runs that the command line expands to.
        request: Resources of the job.
        dry_run: Print the script and submit nothing.
    """

    command: tuple[str, ...]
    runs: tuple[Run, ...]
    request: ResourceRequest
    dry_run: bool = False

    @property
    def reports(self) -> Path:
        return Path(self.runs[0].config.reports)


def group_into_arrays(jobs: Mapping[int, ArrayJob], name: str) -> list[tuple[list[int], JobArray]]:
    """Group jobs with the same resource request into arrays.

    Args:
        jobs: Jobs by their number in the sweep.
        name: Name of the folder below `reports/slurm` that holds the scripts, command lines and logs of the sweep.

    Returns:
        The job numbers of each array, and the array.
    """
    numbers_by_request: dict[str, list[int]] = {}
    for number, job in jobs.items():
        numbers_by_request.setdefault(repr((job.dry_run, job.request)), []).append(number)
    chunks = [
        numbers[start : start + _MAX_ARRAY_SIZE]
        for numbers in numbers_by_request.values()
        for start in range(0, len(numbers), _MAX_ARRAY_SIZE)
    ]
    folder = next((job.reports.absolute() / "slurm" / name for job in jobs.values()), Path())
    return [(chunk, JobArray(folder, index, [jobs[n] for n in chunk])) for index, chunk in enumerate(chunks)]


class JobArray:
    """A Slurm job array.

    Attributes:
        job_id: Slurm's number of the array, empty before it is submitted.
        rejection: Error that sbatch reported for the array.
        stamps: Stamps of the records that existed before the submission.
    """

    def __init__(self, folder: Path, index: int, jobs: Sequence[ArrayJob]) -> None:
        self.folder, self.index, self.jobs = folder, index, jobs
        self.name = f"suite-{folder.name.rpartition('-')[2]}-{index}"
        self.command_file = folder / f"array-{index}.json"
        self.job_id = ""
        self.rejection: InvalidRequest | None = None
        self.stamps: Stamps = {}

    def script(self) -> str:
        """The sbatch script. Each job replaces its shell, so that it receives Slurm's signals itself."""
        request = self.jobs[0].request
        command = [sys.executable, "-m", "suite.runner.slurm.submit", str(self.command_file)]
        template = Template(
            _TEMPLATE.read_text(), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
        )
        text: str = template.render(
            name=self.name,
            jobs=len(self.jobs),
            parallelism=min(len(self.jobs), request.parallelism),
            output=shlex.quote(str(self.folder).replace("%", "%%") + "/%A_%a.log"),
            options=[_flag(name, value) for name, value in request.options.items() if value is not None],
            setup=request.setup,
            command=shlex.join(command),
        )
        return text

    def preview(self) -> str:
        """The sbatch script, followed by the command of each job as a comment."""
        lines = [f"# {n}: suite run {shlex.join(line)}" for n, line in enumerate(self._commands())]
        return "\n".join([f"# sbatch, an array of {len(self.jobs)}", self.script(), *lines])

    def _commands(self) -> list[list[str]]:
        return [[*job.command, "launch.submit=false"] for job in self.jobs]

    def submit(self) -> None:
        """Submit the array. Raises InvalidRequest with the message of sbatch when the cluster rejects it."""
        folders = [str(job.reports) for job in self.jobs]
        self.stamps = {path: stamp for folder in set(folders) for path, stamp in record_stamps(Path(folder)).items()}
        entries = [{"command": c, "reports": f} for c, f in zip(self._commands(), folders, strict=True)]
        write_atomically(self.command_file, json.dumps(entries, indent=1).encode())
        script = write_atomically(self.folder / f"array-{self.index}.sbatch", self.script().encode())
        sbatch = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
        if sbatch.returncode != 0:
            self.rejection = InvalidRequest(
                " ".join(sbatch.stderr.split()) or f"sbatch ended with status {sbatch.returncode}",
                rule="sbatch accepts the job",
                legal="launch.partition, nodes and time as sinfo lists them",
            )
            raise self.rejection
        self.job_id = sbatch.stdout.strip().partition(";")[0]  # JOB, or JOB;CLUSTER

    def exit_status(self, task: int) -> int | None:
        """Exit status that job `task` wrote; None if it wrote none."""
        try:
            return int(json.loads(status_file(self.command_file, task).read_text())["status"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def status_file(command_file: Path, task: int) -> Path:
    """File in which job `task` of an array writes its exit status."""
    return command_file.with_name(f"{command_file.stem}-{task}.exit")


def _flag(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag}={shlex.quote(str(value))}"
