"""Decides what a signal does to a sweep: the parent unwinds, so that its ranks are ended and finished records stand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
