"""Commands that a signal ends: one line, an exit status of its own, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from suite.runner.launch.process_tree import run_program
from suite.runner.launch.signals import Interrupted, ending_ranks
from tests.support.drawn import drawn
from tests.support.waiting import patience, wait_until

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os, signal, sys
from suite.cli import argument, command

@command("Send a signal to itself.", "2", argument("number"), resumes=True)
def main(arguments):
    try:
        os.kill(os.getpid(), int(arguments.number))
    finally:
        os.kill(os.getpid(), int(arguments.number))  # a second signal does not interrupt the clean-up
        print("cleaned up", flush=True)
    return 0

raise SystemExit(main())
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
        timeout=patience(20),
        check=False,
        preexec_fn=set_handlers,
    )


@pytest.mark.parametrize("number", drawn([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], n=1))
def test_signal_ends_a_command_after_its_clean_up(number: signal.Signals) -> None:
    process = run_program_that_signals_itself(number)
    assert process.returncode == 128 + number
    assert process.stdout == "cleaned up\n"
    assert process.stderr == f"interrupted by {number.name}; run the same command again to continue\n"


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("swallowed", [False, True])
def test_interrupt_that_a_library_replaces_or_swallows_ends_the_command(swallowed: bool) -> None:
    with pytest.raises(Interrupted), ending_ranks():
        call_library(swallowed)


def call_library(swallowed: bool) -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as error:
        if not swallowed:
            raise ValueError("of a library") from error


@pytest.mark.usefixtures("own_signals")
def test_two_signals_at_once_print_one_line() -> None:
    work = "import signal as s, os; s.pthread_sigmask(s.SIG_BLOCK, [2, 15]); os.kill(os.getpid(), 2)"
    work += "; os.kill(os.getpid(), 15); s.pthread_sigmask(s.SIG_UNBLOCK, [2, 15])"
    process = run_python(f"from suite.cli import command\ncommand('', '')(lambda _: exec({work!r}))()")
    assert process.stderr in ("interrupted by SIGINT\n", "interrupted by SIGTERM\n")


@pytest.mark.slow("a command imports torch")
def test_thread_in_torch_does_not_abort_an_interrupted_command() -> None:
    """At the end of the interpreter, such a thread would end in `terminate called without an active exception`."""
    process = run_python(COMPUTES)
    assert (process.returncode, process.stdout, process.stderr) == (130, "the last line", "")


COMPUTES = """
import threading, time, torch
import suite.__main__ as program

def compute():
    while True:
        torch.ones(100, 100) @ torch.ones(100, 100)

def main():
    for _ in range(4):
        threading.Thread(target=compute, daemon=True).start()
    time.sleep(0.1)
    print("the last line", end="")
    return 130

program.main = main
program.end()
"""


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", program]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=patience(20), check=False)


def test_program_beyond_its_time_limit_leaves_no_process() -> None:
    child = "sleep 601.5"
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["sh", "-c", f"{child}; true"], seconds=0.3)
    assert child.split() not in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


def test_interrupted_command_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "suite", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: imports_torch(process.pid), 20, "the doctor starts a program")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=patience(20))
    assert process.returncode == 130
    assert stderr == "interrupted by SIGINT\n"
    assert not [other for other in psutil.process_iter() if session_of(other.pid) == process.pid]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def imports_torch(pid: int) -> bool:
    """Whether a child of a process is the doctor's program that imports torch."""
    with suppress(psutil.Error):
        return any("torch" in " ".join(child.cmdline()) for child in psutil.Process(pid).children())
    return False


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
