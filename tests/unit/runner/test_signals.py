"""Commands that a signal ends: one line, an exit status of its own, and no process left."""

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
        os.kill(os.getpid(), int(arguments.options.number))  # a second signal does not interrupt the clean-up
        print("cleaned up", flush=True)
    return 0

def options(parser):
    parser.add_argument("number")

raise SystemExit(Command("x", "Send a signal to itself.", work, "2", options=options, resumes=True).main())
"""


def run_program_that_signals_itself(number: signal.Signals, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    def set_handlers() -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN if ignored else signal.SIG_DFL)

    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=set_handlers,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_command_after_its_clean_up(number: signal.Signals) -> None:
    process = run_program_that_signals_itself(number)
    assert process.returncode == 128 + number
    assert process.stdout == "cleaned up\n"
    assert process.stderr == f"interrupted by {number.name}; run the same command again to continue\n"


def test_ignored_signal_stays_ignored() -> None:
    """Shells ignore signals under nohup and in the background of a script."""
    process = run_program_that_signals_itself(signal.SIGHUP, ignored=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "cleaned up\n", "")


def test_program_beyond_its_time_limit_leaves_no_process() -> None:
    child = "import time; time.sleep(601)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_program([sys.executable, "-c", code], seconds=1.0)
    assert time.monotonic() - begin < 20
    assert not [process for process in psutil.process_iter(["cmdline"]) if child in (process.info["cmdline"] or [])]


@pytest.mark.parametrize("line", [["doctor"], ["claims", "fit"]], ids=" ".join)
def test_interrupted_command_leaves_no_process_and_no_file(tmp_path: Path, line: list[str]) -> None:
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
    time.sleep(0.8)  # the command imports modules, or has started programs of its own
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "interrupted by SIGINT\n"
    assert not [other for other in psutil.process_iter() if session_of(other.pid) == process.pid]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
