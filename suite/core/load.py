"""Load of the machine: load averages, and CPU time that other programs took during a measurement."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.25  # cores; with a higher load from other programs, two ranks on two cores delay each other


def averages() -> dict[str, float]:
    """The load averages of 1, 5 and 15 minutes."""
    return dict(zip(("1min", "5min", "15min"), (round(value, 2) for value in os.getloadavg()), strict=True))


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time counters at one instant.

    Attributes:
        all: CPU seconds of all processes since boot.
        own: CPU seconds of this process and of the children that it has waited for.
        stolen: Seconds since boot that a hypervisor gave to other machines.
        clock: Monotonic time of the reading, in seconds.
    """

    all: float
    own: float
    stolen: float
    clock: float


def cpu_time() -> CpuTime | None:
    """Read the counters; None without a readable /proc/stat."""
    try:
        words = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _, _, irq, soft, stolen = (int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9])
    except (OSError, ValueError, IndexError):
        return None
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return CpuTime(user + nice + system + irq + soft, cpu_seconds, stolen, time.monotonic())


def foreign_cores(before: CpuTime | None, after: CpuTime | None, *, ranks: float = 0.0) -> float:
    """Mean number of cores that other programs or machines used between two readings; 0 if unknown.

    Args:
        before, after: The readings.
        ranks: CPU seconds in between of children that have not ended.
    """
    if before is None or after is None or after.clock <= before.clock:
        return 0.0
    others = (after.all - before.all) - (after.own - before.own) - ranks
    return max(0.0, others + after.stolen - before.stolen) / (after.clock - before.clock)
