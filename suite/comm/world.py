"""Factory of the world of ranks that this process belongs to.

Every backend is imported where it is chosen, so that a process without torch or without MPI can load this module.
"""

from __future__ import annotations

import re
from functools import cache

from suite.comm.p2p.message import EAGER_BYTES
from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.comm.rendezvous.rank_rendezvous import Rendezvous, connect_slurm_step
from suite.core.errors import UnknownName, Unsupported
from suite.core.protocols import World

TRANSPORTS = ("auto", "mpi", "gloo", "nccl")
ORDERS = ("any", "static")
DEVICES = ("cpu", "cuda")
LAUNCHERS_WITHOUT_MPI = ("torchrun", "slurm")


def init_world(
    *,
    device: str = "cpu",
    transport: str = "auto",
    order: str = "any",
    tensors: bool = True,
    eager_bytes: int = EAGER_BYTES,
    pair_exchange: bool = True,
    suspended: bool = False,
) -> World:
    """Return the world of this process. Engines created with equal arguments share one world.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        transport: Backend that sends values between stages. `mpi` and `gloo` run on CPU, and on CUDA through host
            memory (a CUDA-aware MPI needs no copy). `nccl` runs on CUDA. `auto` is mpi under mpiexec; under torchrun
            and srun it is gloo on CPU and nccl on CUDA. A single rank sends no messages.
        order: "any", or "static": every stage runs its ops in the checker's order. NCCL is always static.
        tensors: False sends uninitialised bytes. Over MPI they are plain host memory, and torch is not loaded.
        eager_bytes: Size of the first part of a message, in bytes.
        pair_exchange: Whether a group of two MPI ranks on CPU sums by exchanging bytes.
        suspended: Whether a parent suspends the ranks between rounds, so that messages of torch have no time limit.

    Raises:
        UnknownName: For an unknown transport, order or device.
        Unsupported: For a transport that the device or the launcher does not provide.
    """
    launch = launch_info()
    check_transport(transport, order, device=device, launcher=launch.launcher)
    if transport == "auto":
        without_mpi = "nccl" if device.startswith("cuda") else "gloo"
        transport = "mpi" if launch.launcher == "mpi" else without_mpi
    if launch.size == 1:
        from suite.comm.p2p.threads import Hub, LoopbackWorld

        return LoopbackWorld(Hub(1), 0, device=device)
    host_memory = transport == "mpi" and not tensors
    backend = "host_memory" if host_memory else transport
    return create_world(backend, device, order, eager_bytes, pair_exchange, suspended)


@cache
def create_world(
    backend: str,
    device: str,
    order: str,
    eager_bytes: int,
    pair_exchange: bool,
    suspended: bool,
) -> World:
    """Create the world of one backend, once per process and settings."""
    if backend == "mpi":
        from suite.comm.p2p.mpi import MpiWorld

        return MpiWorld(device=device, order=order, eager_bytes=eager_bytes, pair_exchange=pair_exchange)
    if backend == "host_memory":
        from suite.comm.p2p.host_memory import HostMemoryWorld

        return HostMemoryWorld(device=device, order=order, eager_bytes=eager_bytes, pair_exchange=pair_exchange)
    from suite.comm.collective.process_group import TorchWorld

    launch = launch_info()
    options = {"device": device, "transport": backend, "order": order}
    return TorchWorld(launch, connect_ranks(launch), **options, eager_bytes=eager_bytes, suspended=suspended)


def connect_ranks(launch: LaunchInfo) -> Rendezvous:
    """Connect this process to the store of its ranks, over MPI or as the environment says."""
    if launch.launcher == "mpi":
        from suite.comm.p2p.mpi import connect_mpi_ranks

        return connect_mpi_ranks()
    if launch.launcher == "slurm":
        return connect_slurm_step(launch)
    import torch.distributed as dist

    store, _, _ = next(dist.rendezvous("env://", launch.rank, launch.size))
    return Rendezvous(None, store, launch.local_size == launch.size)


def check_transport(transport: str, order: str, *, device: str, launcher: str) -> None:
    """Check that the device and the launcher provide a transport. Loads no torch.

    Raises:
        UnknownName: For an unknown transport, order or device.
        Unsupported: For NCCL on a CPU, and for MPI under a launcher that does not start MPI ranks.
    """
    for key, value, legal in (("transport", transport, TRANSPORTS), ("order", order, ORDERS)):
        if value not in legal:
            raise UnknownName(key, value, legal)
    check_device(device)
    if transport == "nccl" and device == "cpu":
        raise Unsupported('transport="nccl" on a CPU', rule="NCCL sends CUDA memory only", legal='device="cuda"')
    if transport == "mpi" and launcher in LAUNCHERS_WITHOUT_MPI:
        raise Unsupported(
            f'transport="mpi" under {launcher}',
            rule="MPI ranks are started by mpiexec or by srun --mpi=pmix",
            legal="mpiexec as the launcher",
        )


def check_device(device: str) -> None:
    """Raises UnknownName for another device than a CPU or a GPU of CUDA."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UnknownName("device", device, DEVICES)


def launcher_kind(command: str, mpi: str | None = None) -> str:
    """The `LaunchInfo.launcher` of ranks that `command` starts. mpi: the --mpi option of srun, or None."""
    if command == "srun":
        return "mpi" if mpi else "slurm"
    return {"mpiexec": "mpi"}.get(command, command)


def uses_pair_exchange(transport: str, launcher: str, device: str, *, pair_exchange: bool) -> bool:
    """Whether groups of two ranks sum by exchanging bytes over MPI, which needs a buffer for the peer's operand."""
    return transport in ("auto", "mpi") and launcher == "mpi" and pair_exchange and device == "cpu"
