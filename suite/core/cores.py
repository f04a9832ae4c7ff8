"""Cores of the machine."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
