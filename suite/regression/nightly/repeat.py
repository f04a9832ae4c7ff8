"""Make one repeat: each command line in a separate process, with the reference workload in between.

Every repeat writes into a folder of its own, so that the same command makes a new record under the same name, and
nothing that decides a number has to change for it. A repeat that was not finished is thrown away and made again: its
reference has to be of the same minute.
"""

from __future__ import annotations

import json
import os
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
from suite.regression.compare.record_sets import DONE
from suite.regression.nightly import reference_workload, settings
from suite.runner.launch.signals import die_with_parent

_GRACE = 30  # seconds: a command ends its ranks first
_SHARED = ("PYTHONPATH", "PYTHONSAFEPATH")


@dataclass(frozen=True, slots=True)
class Made:
    """How one command line ended. status: of the process, negative where a signal ended it, None at the deadline; what
    Python itself ends with where a module cannot be imported is 1 as well, so the records are counted."""

    command: str
    status: int | None
    seconds: float
    said: str
    records: int

    @property
    def trouble(self) -> str:
        """Empty where it left its records, whatever their outcomes."""
        if self.records and self.status in (Exit.OK, Exit.SOME_FAILED, Exit.NOTHING):
            return ""
        how = "was not done at its deadline" if self.status is None else f"ended with {self.status}"
        how += "" if self.records else " and left no record"
        last = self.said.strip().splitlines()
        return f"suite run {self.command} {how}{': ' + last[-1] if last else ''}"


def make(tree: Path, command: str, folder: Path, deadline: float) -> Made:
    """Runs `suite run` of the code in `tree`. Its output is stored with its records."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, "-m", "suite", "run", *settings.split(command), f"reports={folder.resolve()}"]
    environment = {name: value for name, value in os.environ.items() if name not in _SHARED}
    begin = time.monotonic()
    with (folder / "said.txt").open("w") as said:
        child = subprocess.Popen(
            arguments,
            cwd=tree,
            env={**environment, "PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(deadline)
        finally:
            _end(child)
    text = (folder / "said.txt").read_text(errors="replace")
    return Made(command, status, time.monotonic() - begin, text[-2000:], _records(folder))


def _records(folder: Path) -> int:
    return len(list(folder.glob("records/*.json")))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Told first, so that it ends its ranks; killed with its group where it does not."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def finished(folder: Path) -> bool:
    return (folder / DONE).is_file()


def repeats(tree: Path, plan: Sequence[tuple[str, Path]], deadline: float, say: Callable[[str], None]) -> list[Made]:
    """Make the unfinished repeats of `plan` (a command and its folder), alternating with the reference workload."""
    runs: list[Made] = []
    before: dict[str, float] = {}
    for number, (command, folder) in enumerate(plan, 1):
        if finished(folder):
            runs.append(_told(command, folder))
            before = {}
            continue
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{number} of {len(plan)} · {command}")
        before = before or reference_workload.measured(tree)
        one = make(tree, command, folder, deadline)
        after = reference_workload.measured(tree)
        done = {"command": command, "status": one.status, "seconds": one.seconds, "before": before, "after": after}
        write_atomically(folder / DONE, json.dumps(done).encode())
        runs.append(one)
        before = after
    return runs


def _told(command: str, folder: Path) -> Made:
    try:
        data = json.loads((folder / DONE).read_text())
        said = (folder / "said.txt").read_text(errors="replace")
        return Made(command, data["status"], float(data["seconds"]), said[-2000:], _records(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return Made(command, None, 0.0, "", 0)
