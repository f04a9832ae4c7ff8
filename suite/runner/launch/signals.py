"""Signals: an interrupted command ends its ranks and keeps finished records; child processes end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from suite.core.errors import Fault, SuiteError
from suite.core.exit_codes import Exit
from suite.core.reasons import format_traceback, headline, raised_in_user_code

LINUX = sys.platform == "linux"
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TRACEBACK = "SUITE_TRACEBACK"  # environment variable; 1: every command prints the traceback of the error that ends it
_AGAIN = 0.01  # seconds after which a signal whose exception Python dropped is sent again
_PR_SET_PDEATHSIG = 1
_state: dict[str, int] = {
    "handled": 0,  # whether handlers are installed
    "signal": 0,  # the first signal, or 0
    "raised": 0,  # whether its exception was raised
}


class Interrupted(SystemExit):
    """A signal ends this command, which exits with 128 + the number of the signal, as in a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number).name

    def __str__(self) -> str:
        return f"interrupted by {self.signal}"


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a child process, request the signal `number` for the moment when the parent ends. Linux only."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextmanager
def ending_ranks() -> Iterator[None]:
    """Context in which SIGINT, SIGTERM and SIGHUP raise Interrupted. Has an effect in the main thread only.

    Only the first signal raises, so that the clean-up is not interrupted. The context then ends with Interrupted, even
    if a library has replaced or swallowed the exception. Python itself drops an exception of a finalizer or of a
    callback of a weak reference, as the import system has them: the signal is then sent again. A signal that was
    ignored before stays ignored (`nohup`, or the background of a shell).
    """

    def raise_interrupted(number: int, frame: FrameType | None) -> None:
        if not _state["raised"]:
            _state.update(signal=_state["signal"] or number, raised=True)
            raise Interrupted(_state["signal"])

    def raise_dropped(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, Interrupted):
            _state["raised"] = False
            main = threading.main_thread().ident
            threading.Timer(_AGAIN, signal.pthread_kill, (main, _state["signal"])).start()
        else:
            report(dropped)

    if threading.current_thread() is not threading.main_thread() or _state["handled"]:
        yield
        return
    before: dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None] = {}
    _state["handled"] = True
    report, sys.unraisablehook = sys.unraisablehook, raise_dropped
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, raise_interrupted)
    try:
        yield
    finally:
        first = _state["signal"]
        _state.update(handled=False, signal=0, raised=False)
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if first else handler)
        if first:
            raise Interrupted(first)


def check_interrupted() -> None:
    """Raise Interrupted again after a signal in `ending_ranks`: a library may have swallowed the first exception."""
    if _state["signal"]:
        raise Interrupted(_state["signal"])


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str], *, resumes: bool = True) -> int:
    """Run a command and return its exit status.

    A refusal, a file system error, an error in the user's code and a signal are reported in one line each. With
    SUITE_TRACEBACK=1 the traceback of an error comes before its line.

    Args:
        command: Function of the command.
        arguments: Its arguments.
        resumes: Whether the same command continues where it was interrupted; the line then says so.
    """
    again = "; run the same command again to continue" if resumes else ""
    try:
        with ending_ranks():
            return command(arguments)
    except Exception as error:
        line = ""
        stack = str(error) if isinstance(error, Fault) else format_traceback(error)
        if isinstance(error, SuiteError) and not isinstance(error, Fault):
            line = f"refused: {error}"
        elif isinstance(error, OSError):  # a full disk, or a read-only folder; records are written atomically
            line = f"stopped: {error}{again}"
        elif isinstance(error, Fault) or raised_in_user_code(error):
            line = f"failed: {headline(stack)}; {TRACEBACK}=1 shows the whole traceback"
        if not line or os.environ.get(TRACEBACK) == "1":
            traceback.print_exc()
        sys.stderr.write(line and f"{line}\n")
        return Exit.NOTHING if line else Exit.FAULT
    except Interrupted as interrupted:
        sys.stderr.write(f"\n{interrupted}{again}\n" if sys.stderr.isatty() else f"{interrupted}{again}\n")
        return int(interrupted.code or Exit.FAULT)
    except KeyboardInterrupt:  # in another thread, or raised by a library
        sys.stderr.write(f"interrupted{again}\n")
        return 128 + signal.SIGINT
