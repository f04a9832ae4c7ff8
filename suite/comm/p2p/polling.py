"""Polling with back-off: spin briefly, yield the core, then sleep between polls.

Each poll also drives message progress. Next to a foreign busy process, a rank that only spins loses whole time
slices per message. A rank that sleeps 50 us returns after 130 us (timer slack, and the exit of a virtual machine
from a halted core), which is longer than most messages take. Yielding the core costs half a microsecond on an idle
machine, and lets other processes run on a busy one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

from suite.core.protocols import Handle, Transport

_PR_SET_TIMERSLACK = 29
_TIMER_SLACK = 1000  # ns; the default of Linux, 50 us, is as long as the sleep itself
SPIN_TIME = 50e-6  # seconds of polling before the first yield
YIELD_TIME = 20e-3  # seconds of polling before the first sleep: a longer wait is for a batch, not for a message
SLEEP_INTERVAL = 50e-6  # seconds
CHECK_INTERVAL = 1.0  # seconds between checks for departed ranks
PROGRESS_INTERVAL = 1e-3  # seconds between polls of messages in sleep_until
WAKE_MARGIN = 150e-6  # seconds before its end at which sleep_until stops sleeping: a sleep is late by up to that


def set_timer_slack() -> None:
    """Let short sleeps of this thread end in time (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK, 0, 0, 0)


def sleep_until(end: float, progress: Callable[[], None]) -> None:
    """Sleep until perf_counter reaches `end`, calling `progress` in between: messages move while a device is busy."""
    while (remaining := end - time.perf_counter()) > 0:
        progress()
        if remaining > WAKE_MARGIN:
            time.sleep(min(PROGRESS_INTERVAL, remaining - WAKE_MARGIN))
        else:
            os.sched_yield()


_wait_checks: list[Callable[[], None]] = []


def add_wait_check(check: Callable[[], None]) -> None:
    """Call `check` in every long wait of this process from now on. It raises where the wait cannot end."""
    _wait_checks.append(check)


def remove_wait_check(check: Callable[[], None]) -> None:
    if check in _wait_checks:
        _wait_checks.remove(check)


def check_departures() -> None:
    """Raise RankError where a rank that this process needs has departed."""
    for check in tuple(_wait_checks):
        check()


def wait_until(
    done: Callable[[], bool], progress: Callable[[], None], timeout: float | None = None, *, yields: bool = True
) -> bool:
    """Poll `done` until it is true, calling `progress` between polls.

    Args:
        yields: Whether the rank yields the core before it sleeps. False where a thread of this process moves the
            messages: that thread may have the same core, and runs sooner while the rank sleeps.

    Returns False where `timeout` seconds pass first. Raises RankError where a rank that this process needs has
    departed, which is checked every CHECK_INTERVAL seconds.
    """
    start, next_check = time.perf_counter(), CHECK_INTERVAL
    while not done():
        progress()
        waited = time.perf_counter() - start
        if timeout is not None and waited > timeout:
            return False
        if waited > (YIELD_TIME if yields else SPIN_TIME):
            if waited > next_check:
                check_departures()
                next_check = waited + CHECK_INTERVAL
            time.sleep(SLEEP_INTERVAL)
        elif waited > SPIN_TIME:
            os.sched_yield()
    return True


def complete(handle: Handle, transport: Transport) -> None:
    """Wait for a collective in the way that suits the transport."""
    if transport.turns:
        handle.wait()
    else:
        wait_until(handle.done, transport.progress, yields=not transport.threaded)
