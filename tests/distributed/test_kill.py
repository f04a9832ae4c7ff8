"""A command that is told to end at any moment ends with its status, and leaves no process. tests/soak kills sweeps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.drawn import cells
from tests.support.processes import processes_of
from tests.support.waiting import patience, wait_until

LIMIT = 10.0  # seconds, on an idle machine, after which no process may be left


def start(folder: Path, *more: str, command: tuple[str, ...] = ("reproduce", "scale=smoke")) -> subprocess.Popen[bytes]:
    """Scratch files are in `folder`, so the command line of every rank contains it."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    line = [sys.executable, "-m", "suite", *command, f"reports={folder / 'reports'}", *more]
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(__file__).parents[2])}

    def heeds_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell inherits that SIGINT is ignored

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, env=env, start_new_session=True, preexec_fn=heeds_interrupts, **pipes)  # noqa: PLW1509


COMMANDS = {
    "run": ("run", "measure.rounds=1000"),
    "replay": ("run", "executor=replay", "measure.rounds=1000"),
    "sweep": ("sweep", "seed=1,2", "measure.rounds=1000"),
    "reproduce": ("reproduce", "scale=kick_the_tires"),  # ranks are threads
}
SENT = ((signal.SIGINT, os.killpg), (signal.SIGINT, os.kill), (signal.SIGTERM, os.kill))


@pytest.mark.parametrize(("command", "sent", "after"), cells(COMMANDS, SENT, (0.0, 0.7, 2.0, 4.0, 8.0), n=1))
def test_interrupt_at_any_time_ends_with_its_status(
    command: str, sent: tuple[signal.Signals, Callable[[int, int], None]], after: float, tmp_path: Path
) -> None:
    process = start(tmp_path, command=COMMANDS[command])
    wait_until(lambda: handles_signals(process.pid), 10, "the command handles signals")
    time.sleep(after)
    assert process.poll() is None
    number, send = sent
    send(process.pid, number)
    output = process.communicate(timeout=patience(20))[0].decode()
    assert process.returncode == 128 + number, output
    assert output.splitlines()[-1].startswith(f"interrupted by {number.name}")
    assert "terminate called" not in output
    assert "Traceback" not in output
    wait_until(lambda: not processes_of(tmp_path), LIMIT, "no process is left", poll=0.2)


def handles_signals(pid: int) -> bool:
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
