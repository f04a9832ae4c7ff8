"""Keys of how ranks are started, on this host or by a scheduler."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from suite.config.base import MAX_RANKS, Duration, Name, Ranks, Settings, name_like

Threads = Annotated[int, Field(ge=1, le=4096, examples=[1])]


class Launch(Settings):
    """Start, supervision and end of ranks, here or in the jobs of a scheduler."""

    name: Name
    launcher: Annotated[Literal["mpiexec", "torchrun", "srun"], Field(examples=["mpiexec"])] = "mpiexec"
    """mpiexec, torchrun, or srun inside a Slurm job."""
    threads: Threads = 1
    """Threads per rank."""
    binding: Annotated[Literal["none", "core", "hwthread", "numa", "package"], Field(examples=["none"])] = "none"
    """Binding of ranks to cores by Open MPI's mpiexec, or srun: none, core, hwthread, numa or package."""
    device: Annotated[Literal["cpu", "cuda"], Field(examples=["cpu"])] = "cpu"
    """cpu, or cuda: each rank takes the device of its number on the host."""
    draws_on: Annotated[Literal["cpu", "cuda"], Field(examples=["cpu"])] = "cpu"
    """Device that draws initial weights: cpu, or cuda, which is quicker and draws other numbers."""
    max_ranks: Ranks = 64
    """Largest grid that is started."""
    exclusive: bool = True
    """Whether experiments of one reports folder are timed one at a time on a host."""
    memory_check: bool = True
    """Whether runs with more predicted memory than this machine has are refused."""
    memory_limit: Annotated[int, Field(ge=1, le=2**62, examples=[8_000_000_000])] | None = None
    """Bytes of address space per rank; null: no limit."""
    deadline: Duration = 120
    """Seconds to start and to build the system."""
    grace: Annotated[Duration, Field(examples=[20])] = 20
    """Seconds from the request to stop until a rank is killed."""
    heartbeat_interval: Annotated[Duration, Field(examples=[5])] = 5
    """Seconds between two heartbeats of a rank."""
    heartbeat_timeout: Annotated[Duration, Field(examples=[60])] | None = 60
    """Seconds without a heartbeat of a rank after which the run ends; null: only the deadline ends it."""
    python_path: Annotated[list[str], Field(default_factory=list, examples=[[]])]
    """Folders with code and YAML files of your own."""
    mpiexec: Annotated[Name | None, name_like(None)] = None
    """Program that starts ranks; null: mpiexec next to this Python, else on PATH."""
    host: Annotated[Name | None, name_like("auto")] = "auto"
    """Address, name or interface at which ranks of other hosts reach this process; auto: all of this host's."""
    mpi: Annotated[Name | None, name_like(None)] = None
    """How srun starts MPI ranks (pmix, pmi2: srun --mpi=list); null: rendezvous without MPI."""
    nodes: Annotated[int, Field(ge=1, le=MAX_RANKS, examples=[1])] | None = None
    """Nodes of a job; null: the smallest number that tasks_per_node allows."""
    tasks_per_node: Annotated[int, Field(ge=1, le=MAX_RANKS, examples=[1])] | None = None
    """Ranks per node; null: all on one node, or evenly over `nodes`."""
    cpus_per_task: Threads | None = None
    """Cores per rank; null: launch.threads."""
    scheduler: Annotated[Literal["slurm"] | None, Field(examples=["slurm"])] = None
    """Scheduler of the cluster; null: none, and no run reads the keys of a job."""
    submit: bool = False
    """Whether runs are submitted as jobs to the scheduler; false: ranks start here."""
    gpus_per_node: Annotated[int, Field(ge=0, le=4096, examples=[0])] | None = None
    """GPUs per node; null: one per task with launch.device=cuda."""
    time: Annotated[int, Field(ge=1, le=1_000_000, examples=[60])] = 60
    """Minutes of a job."""
    partition: Annotated[Name | None, name_like(None)] = None
    """Partition of the cluster; null: the cluster's default."""
    account: Annotated[Name | None, name_like(None)] = None
    """Account that is charged; null: the cluster's default."""
    qos: Annotated[Name | None, name_like(None)] = None
    """Quality of service; null: the cluster's default."""
    constraint: Annotated[Name | None, name_like(None)] = None
    """Kind of node, for comparable numbers; null: any."""
    array_parallelism: Annotated[int, Field(ge=1, le=1_000_000, examples=[16])] = 16
    """Jobs of an array that run at the same time."""
    setup: Annotated[list[str], Field(default_factory=list, examples=[[]])]
    """Lines of shell before a job, such as: module load cuda."""
    extra: dict[str, Any] | None = None
    """Further options of sbatch, such as {mem: 64G, exclusive: true}."""
