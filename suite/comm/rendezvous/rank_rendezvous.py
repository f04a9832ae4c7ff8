"""Rendezvous of ranks without MPI, and choice of the network interface.

Rank 0 reserves a port that the kernel chooses, and the parent process sends it to the other ranks. A port that is
agreed on in advance could belong to another process. Ranks of a user's own srun have no such parent: on one host they
meet in a file.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from suite.comm.rendezvous.launcher_env import LaunchInfo
from suite.core.errors import InvalidRequest


class Rendezvous(NamedTuple):
    """Connection to the store that all ranks share.

    Attributes:
        server: Object to keep alive while ranks use the store (rank 0 only).
        store: torch.distributed store.
        one_host: Whether all ranks run on one host.
    """

    server: Any
    store: Any
    one_host: bool


def reserve_port() -> socket.socket:
    """A socket on a port that the kernel chooses. It does not listen, so that a store of this process can."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def use_loopback_interface() -> None:
    """Let gloo use the loopback interface: it always works on one host, while a host name may not resolve."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def use_interface_of(address: str) -> None:
    """Let gloo and NCCL use the interface that has `address`, unless the user names one.

    By default gloo resolves the name of the host, which often gives the loopback interface.
    """
    import psutil  # imported here: the configuration loads this module for every command

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
            return


def connect_slurm_step(launch: LaunchInfo, environment: Mapping[str, str] | None = None) -> Rendezvous:
    """Connect the ranks of srun.

    They meet at MASTER_ADDR and MASTER_PORT where both are set, else in a file of the step, on one host.

    Raises:
        InvalidRequest: For ranks on several hosts without MASTER_ADDR and MASTER_PORT.
    """
    import torch.distributed as dist

    environment = os.environ if environment is None else environment
    one_host = launch.local_size == launch.size
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        return Rendezvous(None, dist.TCPStore(host, port, launch.size, is_master=launch.rank == 0), one_host)
    if not one_host:
        raise InvalidRequest(
            f"{launch.size} ranks of srun on several hosts",
            rule="MASTER_ADDR and MASTER_PORT must name the address where they meet",
            legal='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500',
        )
    step = (environment.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"))
    return Rendezvous(None, dist.FileStore(str(_private_folder() / "-".join(step)), launch.size), one_host)


def _private_folder() -> Path:
    """A folder for temporary files that no other user can write to."""
    folder = Path(tempfile.gettempdir()) / f"suite-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise InvalidRequest(
            f"{folder} is writable by another user", rule="ranks meet in a private folder", legal="TMPDIR=..."
        )
    return folder
