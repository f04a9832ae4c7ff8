"""Start MPI ranks in a test, with a deadline and their output in the failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from suite.runner.launch.launch_command import binding_options, rank_environment
from tests.support.tools import needs
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[2]

_NOT_STARTED = "listener thread failed to start"  # of mpiexec, before any rank


def run_ranks(
    ranks: int,
    program: Path,
    *arguments: str,
    launcher: str = "mpiexec",
    deadline: float = 120,
    extra: dict[str, str] | None = None,
    again: int = 2,
) -> str:
    """Standard output of `program` under mpiexec or torchrun; an AssertionError with everything it said if it fails or
    is late. `deadline` counts seconds of an idle machine."""
    paths = [str(ROOT)]
    env = rank_environment(1, paths) | (extra or {})
    if launcher == "torchrun":
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        line += [str(program), *arguments]
    else:
        line = [needs("mpiexec"), "-n", str(ranks), *binding_options(None)]
        line += [sys.executable, "-m", "mpi4py", str(program), *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=patience(deadline), check=False)
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"")[-2000:], (late.stderr or b"")[-2000:]
        raise AssertionError(f"{ranks} ranks of {program.name} were not done in {deadline} s\n{said}") from late
    if again and _NOT_STARTED in done.stdout + done.stderr:  # a busy machine exceeds Open MPI's own limits of time
        return run_ranks(ranks, program, *arguments, launcher=launcher, deadline=deadline, extra=extra, again=again - 1)
    assert done.returncode == 0, f"{program.name} on {ranks} ranks: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def without_single_copy() -> dict[str, str]:
    """Open MPI without kernel-assisted copies: messages move only while somebody calls MPI, as on a network."""
    return {"OMPI_MCA_smsc": "^cma,xpmem,knem"}
