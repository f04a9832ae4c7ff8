"""Cores of the machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpuinfo(field: str, file: Path = CPUINFO) -> list[str]:
    """The values of a field in Linux's description of the processors; none on other systems.

    Args:
        field: Name of the field as a regular expression, because architectures have other names.
        file: The description.
    """
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return re.findall(rf"^(?:{field})[ \t]*:[ \t]*(.*\S)", text, re.MULTILINE)
