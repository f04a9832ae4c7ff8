"""Keys of how ranks are started, on this host or by a scheduler."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from suite.config.base import MAX_RANKS, Choice, Duration, Name, Ranks

Threads = Annotated[int, Field(ge=1, le=4096)]


class Launch(Choice):
    """Start, supervision and end of ranks, here or in the jobs of a scheduler."""

    launcher: Literal["mpiexec", "torchrun", "srun"] = "mpiexec"
    """mpiexec, torchrun, or srun inside a Slurm job."""
    threads: Threads = 1
    """Threads per rank."""
    binding: Literal["none", "core", "hwthread", "numa", "package"] = "none"
    """Binding of ranks to cores by Open MPI's mpiexec, or srun: none, core, hwthread, numa or package."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu, or cuda: each rank takes the device of its number on the host."""
    draws_on: Literal["cpu", "cuda"] = "cpu"
    """Device that draws initial weights: cpu, or cuda, which is quicker and draws other numbers."""
    max_ranks: Ranks = 64
    """Largest grid that is started."""
    exclusive: bool = True
    """Whether experiments of one reports folder are timed one at a time on a host."""
    memory_check: bool = True
    """Whether runs with more predicted memory than this machine has are refused."""
    memory_limit: Annotated[int, Field(ge=1, le=2**62)] | None = None
    """Bytes of address space per rank; null: no limit."""
    deadline: Duration = 120
    """Seconds to start and to build the system."""
    grace: Duration = 20
    """Seconds from the request to stop until a rank is killed."""
    heartbeat_interval: Duration = 5
    """Seconds between two heartbeats of a rank."""
    heartbeat_timeout: Duration | None = 60
    """Seconds without a heartbeat of a rank after which the run ends; null: only the deadline ends it."""
    python_path: Annotated[list[str], Field(default_factory=list)]
    """Folders with code and YAML files of your own."""
    mpiexec: Name | None = None
    """Program that starts ranks; null: mpiexec next to this Python, else on PATH."""
    host: Name | None = "auto"
    """Address, name or interface at which ranks of other hosts reach this process; auto: all of this host's."""
    mpi: Name | None = None
    """How srun starts MPI ranks (pmix, pmi2: srun --mpi=list); null: rendezvous without MPI."""
    nodes: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    """Nodes of a job; null: the smallest number that tasks_per_node allows."""
    tasks_per_node: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    """Ranks per node; null: all on one node, or evenly over `nodes`."""
    cpus_per_task: Threads | None = None
    """Cores per rank; null: launch.threads."""
    scheduler: Literal["slurm"] | None = None
    """Scheduler of the cluster; null: none, and no run reads the keys of a job."""
    submit: bool = False
    """Whether runs are submitted as jobs to the scheduler; false: ranks start here."""
    gpus_per_node: Annotated[int, Field(ge=0, le=4096)] | None = None
    """GPUs per node; null: one per task with launch.device=cuda."""
    time: Annotated[int, Field(ge=1, le=1_000_000)] = 60
    """Minutes of a job."""
    partition: Name | None = None
    """Partition of the cluster; null: the cluster's default."""
    account: Name | None = None
    """Account that is charged; null: the cluster's default."""
    qos: Name | None = None
    """Quality of service; null: the cluster's default."""
    constraint: Name | None = None
    """Kind of node, for comparable numbers; null: any."""
    array_parallelism: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Jobs of an array that run at the same time."""
    setup: Annotated[list[str], Field(default_factory=list)]
    """Lines of shell before a job, such as: module load cuda."""
    extra: dict[str, Any] | None = None
    """Further options of sbatch, such as {mem: 64G, exclusive: true}."""
