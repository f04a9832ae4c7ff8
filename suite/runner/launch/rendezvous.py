"""Address of the parent for its ranks, on one host or several.

A rank receives every address of its parent, tries one after the other, and accepts only a parent with the run's
token: the same address may exist on another host."""

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
_TRY, _PATIENCE = 3.0, 60.0  # seconds for one address, and for a parent with a single address
_HELLO, _LINE = 5.0, 4096  # seconds and bytes for a rank's first line
AUTO = "auto"


def on_one_host(launch: Launch, told: Mapping[str, str] | None = None) -> bool:
    """Whether every rank is on this host for certain."""
    told = os.environ if told is None else told
    if launch.launcher == "srun":  # from a shell of salloc, or without one, the ranks are elsewhere
        return "SLURM_JOB_ID" in told and told.get("SLURM_JOB_NODELIST") == told.get("SLURMD_NODENAME")
    return launch.launcher != "mpiexec" or told.get("SLURM_JOB_NUM_NODES", "1") == "1"


def reached(launch: Launch) -> tuple[str, list[str]]:
    """The address that a parent listens at, and those at which its ranks may reach it, the likeliest first. Raises
    InvalidRequest for a launch.host that this host does not have."""
    host = launch.host or AUTO
    if host != AUTO:
        addresses = _of_interface(host) or _resolved(host)
        if not addresses:
            raise InvalidRequest(
                f"launch.host={host}", rule="an address, a name or an interface of this host", legal=AUTO
            )
        return addresses[0], [addresses[0]]
    if on_one_host(launch):
        return LOOPBACK, [LOOPBACK]
    by_name = [address for address in _resolved(socket.gethostname()) if not address.startswith("127.")]
    rest = [address for name in psutil.net_if_addrs() for address in _of_interface(name)]
    return "", [*dict.fromkeys([*by_name, *(a for a in rest if not a.startswith("127.")), LOOPBACK])]


def scratch(config: RunConfig) -> Path | None:
    """Where what ranks read must lie: in a folder that all hosts see; None for anywhere on this one."""
    if on_one_host(config.launch):
        return None
    folder = Path(config.reports).absolute() / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _of_interface(name: str) -> list[str]:
    entries = psutil.net_if_addrs().get(name, [])
    return [entry.address for entry in entries if entry.family is socket.AF_INET]


def _resolved(name: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)))
    except OSError:
        return []


def greeting(token: str) -> bytes:
    """First message of a parent: it proves knowledge of the token without revealing it."""
    return hashlib.sha256(token.encode()).hexdigest().encode() + b"\n"


def connected(hosts: Sequence[str], port: int, token: str) -> socket.socket:
    """A connection to the parent with this token, at the first of `hosts` where it is. Raises RankError."""
    expected = greeting(token)
    patience = _PATIENCE if len(hosts) == 1 else _TRY
    failures = []
    for host in hosts:
        try:
            peer = socket.create_connection((host, port), timeout=patience)
        except OSError as error:
            failures.append(f"{host}: {error}")
            continue
        with suppress(OSError):
            heard = b""
            while len(heard) < len(expected) and (more := peer.recv(len(expected) - len(heard))):
                heard += more
            if secrets.compare_digest(heard, expected):
                peer.settimeout(None)
                return peer
        failures.append(f"{host}: somebody else is there")
        peer.close()
    raise RankError(f"no way to the parent on port {port}: {'; '.join(failures)}")


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a rank.

    Attributes:
        port: Where rank 0 waits for the others, 0 for none.
        rest: What it has said since.
    """

    rank: int
    pid: int
    host: str
    port: int
    rest: bytes


def said_by(peer: socket.socket, token: str) -> Hello | None:
    """The first line of a new connection, read with a short time limit; None without the token."""
    data, end = b"", time.monotonic() + _HELLO
    with suppress(OSError):
        peer.sendall(greeting(token))
        while b"\n" not in data and len(data) < _LINE and (remaining := end - time.monotonic()) > 0:
            peer.settimeout(remaining)
            if not (more := peer.recv(_LINE)):
                break
            data += more
    line, _, rest = data.partition(b"\n")
    try:
        said = json.loads(line)
        hello = Hello(int(said["rank"]), int(said["pid"]), str(said["host"]), int(said["port"]), rest)
        is_ours = secrets.compare_digest(str(said["token"]).encode(), token.encode())
        peer.settimeout(None)
    except (ValueError, TypeError, KeyError, OSError):
        return None
    return hello if is_ours else None


def together(peer: socket.socket, host: str) -> bool:
    """Whether the rank at the other end, which says that it is on `host`, is on this one: it can be signalled."""
    there, here = peer.getpeername()[0], peer.getsockname()[0]
    return host == socket.gethostname() and there == here
