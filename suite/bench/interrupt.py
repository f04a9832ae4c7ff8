"""Decides how a sweep ends before its time: a signal unwinds the parent, so that its ranks are ended and finished
records stand; a parent that is gone without a word takes its children along."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from suite.core.errors import SuiteError
from suite.core.exits import Exit

LINUX = sys.platform == "linux"
FAULT = 70  # exit status of a command that a fault in its own code ended, as in sysexits.h: none of core.exits.Exit
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a child: be sent `number` when the parent is gone, however it went. Linux only."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextmanager
def ending_ranks() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise SystemExit as Ctrl-C raises KeyboardInterrupt (main thread only)."""

    def leave(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # a second one must not cut the ending short
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answered(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """The exit status of a command, whatever ends it: what is refused and what a disk says are one line."""
    try:
        return command(arguments)
    except SuiteError as error:
        sys.stderr.write(f"refused: {error}\n")
        return Exit.NOTHING
    except OSError as error:  # a full disk, a folder that may not be written: every record that is there is whole
        sys.stderr.write(f"stopped: {error}; the same command goes on with what is missing\n")
        return Exit.NOTHING
    except Exception:  # a fault of the suite, or of a system of one's own
        traceback.print_exc()
        return FAULT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: the same command goes on with what is missing\n")
        return 128 + signal.SIGINT
