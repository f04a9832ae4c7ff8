"""A command line as a process of its own, which leaves a record for each of its runs.

A crash in a library, or the out-of-memory killer, therefore ends only one line of a sweep.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.core.exit_codes import Exit
from suite.core.record import Outcome
from suite.runner.executors import in_process
from suite.runner.launch.process_tree import end_program
from suite.runner.launch.signals import die_with_parent
from suite.runner.runs import expand
from suite.runner.store import Store

_GRACE = 20.0  # seconds in which an interrupted process may end its ranks


def run_line(overrides: Sequence[str]) -> int:
    """Execute a command line in a process that ends with this one. Returns its exit status.

    If the process dies, its runs without a record get one.
    """
    process = subprocess.Popen([sys.executable, "-m", "suite", "run", *overrides], preexec_fn=die_with_parent)  # noqa: PLW1509
    try:
        status = process.wait()
    except BaseException:
        end_program(process, _GRACE)  # the process ends its ranks; a terminal may have interrupted it already
        raise
    if status in tuple(Exit) and status != Exit.FAULT:  # the command itself chose the status
        return status
    outcome, reason = ending_reason(status)
    try:
        for run in expand(overrides):
            store = Store(Path(run.config.reports))
            if store.find(run.key) is None and store.reusable(run) is None:
                store.write(in_process.record_of(run, (outcome, reason)))
    except Exception as error:  # a fault of the suite, which ended the process too; other lines continue
        sys.stderr.write(f"no record: {type(error).__name__}: {error}\n")
    return Exit.SOME_FAILED


def ending_reason(status: int) -> tuple[Outcome, str]:
    """Outcome and reason for the runs of a process that ended with `status` before it wrote its records."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return Outcome.FAILED, f"the process of this job ended with status {status}"
    interrupted = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    hint = " (the kernel's out-of-memory killer sends it)" if number == signal.SIGKILL else ""
    return Outcome.CANCELLED if interrupted else Outcome.LOST_RANK, f"the process of this job was ended by {name}{hint}"
