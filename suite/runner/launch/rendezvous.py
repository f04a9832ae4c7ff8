"""Connection between the parent and its ranks, on one host or several.

A rank receives every address of its parent and tries them in order. Both ends prove that they know the key of the run,
because the same address may exist on another host, and another program may find the port.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import psutil

from suite.comm.world import launcher_kind
from suite.config.launch import Launch
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, RankError

LOOPBACK = "127.0.0.1"
_CONNECT_TIMEOUT = 10.0  # seconds for one address of the parent
_READ_TIMEOUT = 30  # seconds for the rest of a message whose first byte has arrived, or for the answer to a challenge
AUTO = "auto"


def all_ranks_on_this_host(launch: Launch, environment: Mapping[str, str] | None = None) -> bool:
    """Whether every rank is certain to run on this host."""
    environment = os.environ if environment is None else environment
    if launch.launcher == "srun":  # from a shell of salloc, or without one, the ranks run elsewhere
        nodes, this_node = environment.get("SLURM_JOB_NODELIST"), environment.get("SLURMD_NODENAME")
        return "SLURM_JOB_ID" in environment and nodes == this_node
    return launch.launcher != "mpiexec" or environment.get("SLURM_JOB_NUM_NODES", "1") == "1"


def parent_addresses(launch: Launch) -> tuple[str, list[str]]:
    """The address on which the parent listens, and the addresses to try for its ranks, the likeliest first.

    Raises InvalidRequest for a launch.host that this host does not have.
    """
    host = launch.host or AUTO
    if host != AUTO:
        addresses = _interface_addresses(host) or _resolve(host)
        if not addresses:
            raise InvalidRequest(
                "launch.host", host, rule="an address, a name or an interface of this host", legal=AUTO
            )
        return addresses[0], [addresses[0]]
    if all_ranks_on_this_host(launch):
        return LOOPBACK, [LOOPBACK]
    by_name = _resolve(socket.gethostname())
    by_interface = [address for name in psutil.net_if_addrs() for address in _interface_addresses(name)]
    external = [address for address in (*by_name, *by_interface) if not address.startswith("127.")]
    return "", [*dict.fromkeys([*external, LOOPBACK])]


def parent_sends_rendezvous(launch: Launch) -> bool:
    """Whether the parent sends the ranks their rendezvous address, because their launcher does not."""
    return launcher_kind(launch.launcher, launch.mpi) == "slurm"


def shared_scratch(config: RunConfig) -> Path | None:
    """Folder for files that ranks on other hosts read; None if all ranks run on this host."""
    if all_ranks_on_this_host(config.launch):
        return None
    folder = Path(config.reports).absolute() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _interface_addresses(name: str) -> list[str]:
    entries = psutil.net_if_addrs().get(name, [])
    return [entry.address for entry in entries if entry.family is socket.AF_INET]


def _resolve(name: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)))
    except OSError:
        return []


def authenticated(peer: socket.socket, key: str, *, is_parent: bool) -> Connection:
    """A connection over `peer`, whose other end knows `key`. Raises ConnectionError for another program."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _READ_TIMEOUT, 0))
    connection = Connection(peer.detach())
    steps = (deliver_challenge, answer_challenge) if is_parent else (answer_challenge, deliver_challenge)
    try:
        for step in steps:
            step(connection, key.encode())
    except (OSError, EOFError, AssertionError, AuthenticationError) as error:
        connection.close()
        raise ConnectionError("another program is at the other end") from error
    return connection


def connect_to_parent(hosts: Sequence[str], port: int, key: str) -> tuple[Connection, str, str]:
    """Connect to the parent that knows `key`, at the first of `hosts` that answers.

    Returns:
        The connection, the address of this end, and the parent's address.

    Raises:
        RankError: No host has such a parent.
    """
    failures = []
    for host in hosts:
        try:
            peer = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT)
            address, parent_address = peer.getsockname()[0], peer.getpeername()[0]
            return authenticated(peer, key, is_parent=False), address, parent_address
        except OSError as error:
            failures.append(f"{host}: {error}")
    raise RankError(f"no connection to the parent on port {port}: {'; '.join(failures)}")
