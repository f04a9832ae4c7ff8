"""Rendezvous of ranks without MPI, and choice of the network interface.

Rank 0 binds a port that the kernel chooses, and the parent sends it to the other ranks: a port agreed on in advance
could belong to another process. Ranks of a user's own srun have no parent; on one host they meet in a file."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from suite.comm.rendezvous.launcher_env import Start
from suite.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Meeting:
    """Rendezvous information of a rank.

    Attributes:
        host, port: Of rank 0.
        local: Whether all are on one host.
        address: This rank's own, as others reach it.
        listener: Rank 0's bound socket, as a file descriptor; None on others.
    """

    host: str
    port: int
    local: bool
    address: str
    listener: int | None = None

    def met(self, start: Start) -> tuple[Any, Any, bool]:
        """A server to keep alive (on rank 0), the store where all ranks meet, and whether they are on one host."""
        from torch.distributed import TCPStore

        if not self.local:
            speak_from(self.address)
        if self.listener is None:
            return None, store_at(self.host, self.port, start.size), self.local
        server = TCPStore(
            self.host,
            self.port,
            start.size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self.listener,
        )
        return server, server, self.local


def bound(address: str) -> tuple[int, int]:
    """A socket on a port that the kernel chooses, and that port. The owner of the descriptor closes it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((address, 0))
        port: int = server.getsockname()[1]
        return server.detach(), port


def store_at(host: str, port: int, size: int) -> Any:
    """The store that another rank serves."""
    from torch.distributed import TCPStore

    return TCPStore(host, port, size, is_master=False)


def stay_on_host() -> None:
    """All ranks are on one host: the loopback interface always works, a host name may not resolve."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def speak_from(address: str) -> None:
    """Ranks are on several hosts: gloo and NCCL use the interface that has this address, unless the user names one.
    Left alone, gloo asks what the host's own name means, which is often the loopback interface."""
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def interface_of(address: str) -> str | None:
    """The interface of this host that has an address; None where none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return str(name)
    return None


def of_a_step(start: Start, told: Mapping[str, str] | None = None) -> tuple[Any, Any, bool]:
    """As Meeting.met, for the ranks of a user's own srun: at MASTER_ADDR and MASTER_PORT where they are set, else, on
    one host, in a file that the step alone has. Raises InvalidRequest where there is neither."""
    import torch.distributed as dist

    told = os.environ if told is None else told
    local = start.local_size == start.size
    if "MASTER_ADDR" in told and "MASTER_PORT" in told:
        store = dist.TCPStore(told["MASTER_ADDR"], int(told["MASTER_PORT"]), start.size, is_master=start.rank == 0)
        return None, store, local
    if not local:
        raise InvalidRequest(
            f"{start.size} ranks of srun on several hosts",
            rule="they meet where MASTER_ADDR and MASTER_PORT say, and these are not set",
            legal='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500',
        )
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    return None, dist.FileStore(str(_own_folder() / "-".join(told.get(n, "0") for n in names)), start.size), local


def _own_folder() -> Path:
    """A folder for temporary files that no other user may write to."""
    folder = Path(tempfile.gettempdir()) / f"suite-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise InvalidRequest(
            f"{folder} belongs to somebody else", rule="ranks meet in a folder of their own", legal="TMPDIR=..."
        )
    return folder
