"""Decides how a rank waits: spin briefly, then offer its core, then sleep between looks, moving messages all the while.

A rank that only spins beside a foreign busy process loses whole time slices per message. One that sleeps 50 us is back
after 130 (the timer's slack, and a virtual machine's way out of a halted core), which is longer than most messages
take. To offer the core costs half a microsecond where nobody wants it, and lets others run where somebody does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SPIN = 50e-6  # seconds of looking only
OFFER = 20e-3  # seconds after which a rank sleeps between looks: it waits for a batch, not for a message
NAP = 50e-6


def until(done: Callable[[], bool], progress: Callable[[], None], timeout: float | None = None) -> bool:
    """Look at `done` until it is true, calling `progress` between looks; False if `timeout` seconds pass first."""
    start = time.perf_counter()
    while not done():
        progress()
        waited = time.perf_counter() - start
        if timeout is not None and waited > timeout:
            return False
        if waited > OFFER:
            time.sleep(NAP)
        elif waited > SPIN:
            os.sched_yield()
    return True
