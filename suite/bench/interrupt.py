"""Decides how a sweep ends before its time: a signal unwinds the parent, so that its ranks are ended and finished
records stand; a parent that is gone without a word takes its children along."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a child: be sent `number` when the parent is gone, however it went. Linux only."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextmanager
def ending_ranks() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise SystemExit as Ctrl-C raises KeyboardInterrupt (main thread only)."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
