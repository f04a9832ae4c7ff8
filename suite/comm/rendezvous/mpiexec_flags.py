"""Command lines of mpiexec that a user types, with the flags that this machine needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def find_mpiexec(configured: str | None) -> str | None:
    """The launcher named in the config, the one next to this Python (from a wheel), or the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    if configured:
        return shutil.which(configured)
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@cache
def mpi_version(configured: str | None) -> str:
    """The launcher's first line about itself; empty without one."""
    mpiexec = find_mpiexec(configured)
    if mpiexec is None:
        return ""
    for _ in range(3):  # a launcher that somebody has killed says nothing, which is no version of its own
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode >= 0:
            break
    return " ".join(done.stdout.split("\n")[0].split())


def is_open_mpi(configured: str | None = None) -> bool:
    """Whether the launcher is Open MPI's or PRRTE's, which count cores, bind ranks to them, and refuse root."""
    return "open" in mpi_version(configured).lower()


def flags(ranks: int) -> tuple[list[str], list[str]]:
    """Variables to set before mpiexec, and options of mpiexec, for this number of ranks on this machine. Both are
    empty where mpiexec is not Open MPI's.
    """
    if not is_open_mpi():
        return [], []
    root = os.geteuid() == 0
    unset = [f"{name}=1" for name in ROOT_VARIABLES if root and os.environ.get(name) != "1"]
    crowded = ranks > cores()
    return unset, ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if crowded else []


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def line(ranks: int, program: str = "train.py") -> str:
    """The command line that starts `program` on so many ranks here."""
    variables, options = flags(ranks)
    return " ".join([*variables, "mpiexec", "-n", str(ranks), *options, "python", "-m", "mpi4py", program])
