"""Repeats of command lines, each in a separate process.

Every repeat writes into its own folder, so that one command makes several records of one name. An unfinished repeat is
discarded and made again.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from suite.core.exit_codes import Exit
from suite.core.files import write_atomically
from suite.regression.record_sets import DONE
from suite.runner.launch.signals import die_with_parent

_GRACE = 30  # seconds in which a command ends its ranks
_TAIL = 2000  # characters of the output that are kept in memory
_OUTPUT = "output.txt"
_SHARED = ("PYTHONPATH", "PYTHONSAFEPATH")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """End of one command line.

    Attributes:
        command: Its overrides.
        status: Exit status; negative if a signal ended it, None at the deadline.
        seconds: Duration.
        output: End of its output.
        records: Number of records. Python exits with 1 too if a module cannot be imported, so records are counted.
    """

    command: str
    status: int | None
    seconds: float
    output: str
    records: int

    @property
    def problem(self) -> str:
        """Why the command failed; empty if it left records, whatever their outcomes."""
        if self.records and self.status in (Exit.OK, Exit.SOME_FAILED, Exit.NOTHING):
            return ""
        end = "was not done at its deadline" if self.status is None else f"ended with {self.status}"
        end += "" if self.records else " and left no record"
        lines = self.output.strip().splitlines()
        return f"suite run {self.command} {end}{': ' + lines[-1] if lines else ''}"


def run_command(tree: Path, command: str, folder: Path, deadline: float) -> CommandResult:
    """Run `suite run` with the code in `tree`. Its output is stored next to its records in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, "-m", "suite", "run", *shlex.split(command), f"reports={folder.resolve()}"]
    environment = {name: value for name, value in os.environ.items() if name not in _SHARED}
    begin = time.monotonic()
    with (folder / _OUTPUT).open("w") as output:
        process = subprocess.Popen(
            arguments,
            cwd=tree,
            env={**environment, "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(deadline)
        finally:
            _end(process)
    return CommandResult(command, status, time.monotonic() - begin, _tail(folder), _count_records(folder))


def _tail(folder: Path) -> str:
    return (folder / _OUTPUT).read_text(errors="replace")[-_TAIL:]


def _count_records(folder: Path) -> int:
    return len(list(folder.glob("records/*.json")))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, which then ends its ranks; kill its group after the grace time."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_repeats(
    tree: Path, plan: Sequence[tuple[str, Path]], deadline: float, report: Callable[[str], None]
) -> list[CommandResult]:
    """Make the unfinished repeats of a plan.

    Args:
        tree: Folder of the code.
        plan: Command and folder of each repeat.
        deadline: Seconds for each command.
        report: Receives a line of progress.
    """
    results: list[CommandResult] = []
    for number, (command, folder) in enumerate(plan, 1):
        if (folder / DONE).is_file():
            results.append(_load_result(command, folder))
            continue
        shutil.rmtree(folder, ignore_errors=True)
        report(f"{number} of {len(plan)} · {command}")
        results.append(run_command(tree, command, folder, deadline))
        done = {"command": command, "status": results[-1].status, "seconds": results[-1].seconds}
        write_atomically(folder / DONE, json.dumps(done).encode())
    return results


def _load_result(command: str, folder: Path) -> CommandResult:
    try:
        done = json.loads((folder / DONE).read_text())
        return CommandResult(command, done["status"], float(done["seconds"]), _tail(folder), _count_records(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return CommandResult(command, None, 0.0, "", 0)
