"""Decides how a rank waits: spin briefly, then sleep between looks, moving messages all the while.

A rank that spins beside one foreign busy process loses whole time slices per message; one that sleeps at once adds
latency to every message. So: spin for `SPIN` seconds, then sleep `NAP` seconds between looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN = 50e-6
NAP = 50e-6


def until(done: Callable[[], bool], progress: Callable[[], None], timeout: float | None = None) -> bool:
    """Look at `done` until it is true, calling `progress` between looks; False if `timeout` seconds pass first."""
    start = time.perf_counter()
    while not done():
        progress()
        waited = time.perf_counter() - start
        if timeout is not None and waited > timeout:
            return False
        if waited > SPIN:
            time.sleep(NAP)
    return True
