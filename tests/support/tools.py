"""Skip a test when a tool is missing; with `--no-skip` (root conftest.py) the skip is a failure.

Every skip for want of a tool has a reason that starts with the tool's name and a colon, here and elsewhere.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.util import find_spec

import pytest

from suite.comm.rendezvous.mpiexec_flags import find_mpiexec
from suite.core.errors import MissingDependency
from suite.doctor.checks import find_chromium

_SLURM = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel")


def _program(name: str) -> str | None:
    if name == "chromium":
        return find_chromium()
    if name == "slurm":
        return shutil.which("sbatch") if all(map(shutil.which, _SLURM)) else None
    if name == "pyodide":
        from suite.whatif.site import pyodide  # loads pandas

        with suppress(MissingDependency):
            return str(pyodide())
        return None
    return find_mpiexec(None) if name == "mpiexec" else shutil.which(name)


def _package(name: str) -> str | None:
    spec = find_spec(name)
    return spec.origin if spec is not None else None


_FIND = {"chromium": _program, "mpiexec": _program, "slurm": _program, "deepspeed": _package, "pyodide": _program}
INSTALL = {
    "chromium": "apt-get install chromium",
    "mpiexec": "make install",
    "slurm": "apt-get install munge slurmctld slurmd slurm-client",
    "deepspeed": "make install",
    "pyodide": "make install",
}


def needs(tool: str) -> str:
    """The path of chromium, mpiexec, sbatch or deepspeed; skips the test where there is none."""
    path = _FIND[tool](tool)
    if path is None:
        pytest.skip(f"{tool}: {INSTALL[tool]}")
    return path
