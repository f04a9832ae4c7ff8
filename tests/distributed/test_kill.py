"""Killing a reproduction at any moment loses no finished run and leaves no process; the same command resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from suite.core.record import Outcome, Record
from tests.support.pairwise import pairwise

CONF = Path(__file__).parents[2] / "conf"
LIMIT = 10.0  # seconds after which no process may be left
FORMULAS = len(
    yaml.safe_load((CONF / "experiment/formulas.yaml").read_text())["experiment"]["runs"]
)  # these need no ranks
MEASURED = 3  # number of records of SMALL, in addition to the formulas' records
SMALL = "scale.reproduce=[formulas,smoke,'single grid.inter=2']"
TURNS = "scale.reproduce=[formulas,smoke_grid]"  # a single process is too fast to be stopped in between


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Scratch files are in `folder`, so the command line of every rank contains it."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    line = [sys.executable, "-m", "suite", "reproduce", "scale=smoke", f"reports={folder / 'reports'}", *more]
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(__file__).parents[2])}

    def heeds_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell inherits that SIGINT is ignored

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, env=env, start_new_session=True, preexec_fn=heeds_interrupts, **pipes)  # noqa: PLW1509


def ours(folder: Path) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "gone"


def records(folder: Path) -> dict[str, Record]:
    files = (folder / "reports" / "records").glob("*.json")
    return {file.name: Record.read(file) for file in files}


@pytest.mark.parametrize(
    ("number", "moment", "starter"),
    pairwise(
        [
            (signal.SIGTERM, "the first ranks are starting", "mpiexec"),
            (signal.SIGINT, "ranks of two systems are stopped between their turns", "torchrun"),
            (signal.SIGKILL, "ranks of two systems are stopped between their turns", "torchrun"),
            (signal.SIGKILL, "ranks of two systems are stopped between their turns", "mpiexec"),
            (signal.SIGTERM, "ranks of two systems are stopped between their turns", "mpiexec"),
            (signal.SIGKILL, "the first ranks are starting", "mpiexec"),
        ],
        always=[(signal.SIGKILL, "ranks of two systems are stopped between their turns", "mpiexec")],
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
    end = time.monotonic() + 90
    reached = False
    while not reached:
        assert time.monotonic() < end
        assert parent.poll() is None, parent.communicate()[0]
        time.sleep(0.05)
        ranks = [process for process in ours(tmp_path) if process.pid != parent.pid]
        if "starting" in moment:
            reached = bool(ranks)
        elif "stopped" in moment:
            reached = sum(status(rank) == psutil.STATUS_STOPPED for rank in ranks) >= 3  # at most two ranks per system
        else:
            reached = len(records(tmp_path)) >= FORMULAS + 2 and len(ranks) >= 3  # mpiexec is one of them
    finished = records(tmp_path)
    parent.send_signal(number)
    assert parent.wait(LIMIT) != 0, "it went on to its end"
    gone = time.monotonic() + LIMIT
    while ours(tmp_path):
        assert time.monotonic() < gone, f"left: {[' '.join(p.cmdline()) for p in ours(tmp_path)]}"
        time.sleep(0.05)
    after = records(tmp_path)
    assert {name: after[name] for name in finished} == finished
    assert not list((tmp_path / "reports").rglob("*.partial")) or number is signal.SIGKILL
    if number is not signal.SIGKILL:
        cancelled = [record for name, record in after.items() if name not in finished]
        assert cancelled, "what was being measured leaves a record"
        assert {record.outcome for record in cancelled} == {Outcome.CANCELLED}
    if "are up" in moment:
        again = start(tmp_path, *more)
        output = again.communicate(timeout=120)[0].decode()
        assert again.returncode == 0, output
        resumed = records(tmp_path)
        assert len(resumed) == FORMULAS + MEASURED
        assert {name: resumed[name] for name in finished} == finished
        assert (tmp_path / "reports" / "index.html").exists()
