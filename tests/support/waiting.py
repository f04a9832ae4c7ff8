"""Deadlines that follow the load of the machine, and waits for conditions.

wait_until(lambda: path.exists())            # polls; fails after 30 s of an idle machine
subprocess.run(line, timeout=patience(20))   # 60 s where the reference loop takes its usual time, else more
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

_LOOPS = 200_000
_USUAL = 0.02  # seconds that the loop takes at most on an idle core of 2023
_POLL = 0.01
_QUIET = 25.0  # percent of the machine that other processes may use while times are judged


def loop_seconds(clock: Callable[[], float]) -> float:
    """Seconds of `clock` that the reference loop takes."""
    begin = clock()
    sum(number * number % 7 for number in range(_LOOPS))
    return clock() - begin


def slowness() -> float:
    """How many times longer than usual the reference loop takes now, at least 1. Load of other processes counts."""
    return max(1.0, loop_seconds(time.perf_counter) / _USUAL)


def patience(seconds: float) -> float:
    """A deadline for work that takes at most `seconds` on an idle machine. It never decides a passing test."""
    return seconds * max(3.0, 3 * slowness())


def quiet(seconds: float = 15) -> bool:
    """Wait until other processes leave the machine to a test that compares times. False if they never do."""
    late = time.monotonic() + seconds
    while psutil.cpu_percent(interval=0.3) > _QUIET:
        if time.monotonic() > late:
            return False
    return True


def wait_until(reached: Callable[[], bool], seconds: float = 10, what: str = "", poll: float = _POLL) -> None:
    """Ask `reached` every `poll` seconds until it holds; an AssertionError after `patience(seconds)`."""
    late = time.monotonic() + patience(seconds)
    while not reached():
        assert time.monotonic() < late, f"not reached in {seconds} s of an idle machine: {what or reached}"
        time.sleep(poll)
