"""Address of the parent for its ranks, on one host or several.

A rank receives every address of its parent and tries them in order. It accepts only a parent that proves knowledge of
the run's token, because the same address may exist on another host.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from suite.config.launch import Launch
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, RankError

LOOPBACK = "127.0.0.1"
_TIMEOUT, _ONLY_ADDRESS_TIMEOUT = 3.0, 60.0  # seconds for one of several addresses, and for a single one
_HELLO_TIMEOUT, _MAX_HELLO = 5.0, 4096  # seconds and bytes for a rank's first line
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


def greeting(token: str) -> bytes:
    """First message of a parent: it proves knowledge of the token without revealing it."""
    return hashlib.sha256(token.encode()).hexdigest().encode() + b"\n"


def connect_to_parent(hosts: Sequence[str], port: int, token: str) -> socket.socket:
    """Connect to the parent that knows `token`, at the first of `hosts` that answers. Raises RankError."""
    expected = greeting(token)
    timeout = _ONLY_ADDRESS_TIMEOUT if len(hosts) == 1 else _TIMEOUT
    failures = []
    for host in hosts:
        try:
            peer = socket.create_connection((host, port), timeout=timeout)
        except OSError as error:
            failures.append(f"{host}: {error}")
            continue
        with suppress(OSError):
            received = b""
            while len(received) < len(expected) and (more := peer.recv(len(expected) - len(received))):
                received += more
            if secrets.compare_digest(received, expected):
                peer.settimeout(None)
                return peer
        failures.append(f"{host}: another program listens there")
        peer.close()
    raise RankError(f"no connection to the parent on port {port}: {'; '.join(failures)}")


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a rank.

    Attributes:
        rank: Number of the rank.
        pid: Process id of the rank.
        host: Host name of the rank.
        port: Port on which rank 0 waits for the other ranks; 0 for none.
        rest: Bytes received after the message.
    """

    rank: int
    pid: int
    host: str
    port: int
    rest: bytes


def read_hello(peer: socket.socket, token: str) -> Hello | None:
    """Read the first line of a new connection within a few seconds. None if it lacks the token."""
    data, end = b"", time.monotonic() + _HELLO_TIMEOUT
    with suppress(OSError):
        peer.sendall(greeting(token))
        while b"\n" not in data and len(data) < _MAX_HELLO and (remaining := end - time.monotonic()) > 0:
            peer.settimeout(remaining)
            if not (more := peer.recv(_MAX_HELLO)):
                break
            data += more
    line, _, rest = data.partition(b"\n")
    try:
        fields = json.loads(line)
        hello = Hello(int(fields["rank"]), int(fields["pid"]), str(fields["host"]), int(fields["port"]), rest)
        has_token = secrets.compare_digest(str(fields["token"]).encode(), token.encode())
        peer.settimeout(None)
    except (ValueError, TypeError, KeyError, OSError):
        return None
    return hello if has_token else None


def is_same_host(peer: socket.socket, host: str) -> bool:
    """Whether a peer that reports the name `host` runs on this host, so that it can be signalled."""
    peer_address, own_address = peer.getpeername()[0], peer.getsockname()[0]
    return host == socket.gethostname() and peer_address == own_address
