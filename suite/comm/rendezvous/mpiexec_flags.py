"""mpiexec: where it is, its version, and the flags that a command line needs on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from suite.core.cores import cores

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def find_mpiexec(configured: str | None) -> str | None:
    """Path of the mpiexec in the config, next to this Python (installed from a wheel), or on PATH."""
    if configured:
        return shutil.which(configured)
    next_to_python = Path(sys.executable).with_name("mpiexec")
    return str(next_to_python) if next_to_python.exists() else shutil.which("mpiexec")


@cache
def mpi_version(configured: str | None) -> str:
    """The first line of `mpiexec --version`; empty without mpiexec."""
    mpiexec = find_mpiexec(configured)
    if mpiexec is None:
        return ""
    for _ in range(3):  # a process that a signal ended has printed no version
        process = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
        if process.returncode >= 0:
            break
    return " ".join(process.stdout.split("\n")[0].split())


def is_open_mpi(configured: str | None = None) -> bool:
    """Whether mpiexec is Open MPI's or PRRTE's. They count cores, bind ranks to cores, and refuse to run as root."""
    return "open" in mpi_version(configured).lower()


def command_line(ranks: int, program: str = "train.py") -> str:
    """The command line that starts `program` on so many ranks here, with the variables and options of Open MPI."""
    variables, options = list[str](), ""
    if is_open_mpi():
        if os.geteuid() == 0:
            variables = [f"{name}=1" for name in ROOT_VARIABLES if os.environ.get(name) != "1"]
        if ranks > cores():
            options = "--map-by :OVERSUBSCRIBE --bind-to none "
    return " ".join([*variables, f"mpiexec -n {ranks} {options}python -m mpi4py {program}"])
