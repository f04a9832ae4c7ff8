"""Killing a reproduction at any moment loses no finished run and leaves no process; the same command resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from suite.core.record import Outcome, Record
from suite.runner.runs import expand
from tests.support.drawn import cells
from tests.support.processes import processes_of
from tests.support.waiting import patience, wait_until

LIMIT = 10.0  # seconds, on an idle machine, after which no process may be left
FORMULAS = len(expand(["experiment=formulas"]))  # these runs need no ranks
MEASURED = 3  # number of records of SMALL, in addition to the formulas' records
SMALL = "scale.reproduce=[formulas,smoke,'single grid.inter=2']"
TURNS = "scale.reproduce=[formulas,'smoke measure.rounds=1000']"  # it does not end before it is killed


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


def status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "gone"


def records(folder: Path) -> dict[str, Record]:
    files = (folder / "reports" / "records").glob("*.json")
    return {file.name: Record.read(file) for file in files}


COMMANDS = {
    "run": ("run", "measure.rounds=1000"),
    "replay": ("run", "executor=replay", "measure.rounds=1000"),
    "sweep": ("sweep", "seed=1,2", "measure.rounds=1000"),
    "reproduce": ("reproduce", "scale=kick_the_tires"),  # ranks are threads
}
SENT = ((signal.SIGINT, os.killpg), (signal.SIGINT, os.kill), (signal.SIGTERM, os.kill))


@pytest.mark.slow("real ranks, interrupted after some seconds")
@pytest.mark.parametrize(("command", "sent", "after"), cells(COMMANDS, SENT, (0.0, 0.7, 2.0, 4.0, 8.0), n=2))
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


@pytest.mark.slow("a whole reproduction on real ranks")
@pytest.mark.parametrize(
    ("number", "moment", "starter"),
    cells(
        (signal.SIGTERM, signal.SIGINT, signal.SIGKILL),
        ("the first ranks are starting", "a rank is stopped between its turns"),
        ("mpiexec", "torchrun"),
        n=1,
    )
    + [  # late in a sweep takes long; `make soak` covers it
        pytest.param(
            each, "two measured records are there and two ranks are up", "mpiexec", marks=pytest.mark.exhaustive
        )
        for each in (signal.SIGKILL, signal.SIGINT)
    ],
)
def test_killed_sweep_leaves_no_process_and_resumes(
    tmp_path: Path, number: signal.Signals, moment: str, starter: str
) -> None:
    more = [] if starter == "mpiexec" else [f"launch.launcher={starter}"]
    more += [TURNS if "stopped" in moment else SMALL]
    parent = start(tmp_path, *more)

    def reached() -> bool:
        assert parent.poll() is None, parent.communicate()[0]
        ranks = [process for process in processes_of(tmp_path) if process.pid != parent.pid]
        if "starting" in moment:
            return bool(ranks)
        if "stopped" in moment:
            return any(status(rank) == psutil.STATUS_STOPPED for rank in ranks)
        return len(records(tmp_path)) >= FORMULAS + 2 and len(ranks) >= 3  # mpiexec is one of them

    wait_until(reached, 60, moment, poll=0.2)  # a look at all processes takes 20 ms
    finished = records(tmp_path)
    parent.send_signal(number)
    assert parent.wait(patience(LIMIT)) != 0, "it went on to its end"
    wait_until(lambda: not processes_of(tmp_path), LIMIT, "no process is left", poll=0.2)
    after = records(tmp_path)
    assert {name: after[name] for name in finished} == finished
    assert not list((tmp_path / "reports").rglob("*.partial")) or number is signal.SIGKILL
    if number is not signal.SIGKILL:
        cancelled = [record for name, record in after.items() if name not in finished]
        assert cancelled, "what was being measured leaves a record"
        assert {record.outcome for record in cancelled} == {Outcome.CANCELLED}
    if "are up" in moment:
        again = start(tmp_path, *more)
        output = again.communicate(timeout=patience(60))[0].decode()
        assert again.returncode == 0, output
        resumed = records(tmp_path)
        assert len(resumed) == FORMULAS + MEASURED
        assert {name: resumed[name] for name in finished} == finished
        assert (tmp_path / "reports" / "index.html").exists()
