"""A signal ends a command in one line with its own exit status, after the clean-up and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from suite.runner.launch.signals import run_program

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os, signal, sys
from suite.cli import Command

def work(arguments):
    try:
        os.kill(os.getpid(), int(arguments.options.number))
    finally:
        os.kill(os.getpid(), int(arguments.options.number))  # a second one does not cut this short
        print("cleaned up", flush=True)
    return 0

def options(parser):
    parser.add_argument("number")

raise SystemExit(Command("x", "Send a signal to itself.", work, "2", options=options, resumes=True).main())
"""


def ended(number: signal.Signals, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    def before() -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN if ignored else signal.SIG_DFL)

    line = [sys.executable, "-c", PROGRAM, str(int(number))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False, preexec_fn=before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_one_line_and_a_status(number: signal.Signals) -> None:
    done = ended(number)
    assert done.returncode == 128 + number
    assert done.stdout == "cleaned up\n"
    assert done.stderr == f"interrupted by {number.name}; the same command goes on with what is missing\n"


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """Under nohup, and in the background of a script."""
    done = ended(signal.SIGHUP, ignored=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\n", "")


def test_a_program_that_is_cut_short_leaves_no_process() -> None:
    child = "import time; time.sleep(601)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_program([sys.executable, "-c", code], seconds=1.0)
    assert time.monotonic() - begin < 20
    assert not [process for process in psutil.process_iter(["cmdline"]) if child in (process.info["cmdline"] or [])]


@pytest.mark.parametrize("line", [["doctor"], ["claims", "fit"]], ids=" ".join)
def test_an_interrupted_command_leaves_no_process_and_no_file(tmp_path: Path, line: list[str]) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-m", "suite", *line],
        cwd=tmp_path,
        env=env,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        **pipes,
    )
    time.sleep(0.8)  # while it imports, or has started programs of its own
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told == "interrupted by SIGINT\n"
    assert not [one for one in psutil.process_iter() if session(one.pid) == process.pid]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
