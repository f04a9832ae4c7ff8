"""Slurm cluster on the local machine: munged, slurmctld and slurmd.

    with cluster() as one_node: ...                            # one node, on the loopback interface
    with two_hosts() as hosts, cluster(hosts) as nodes: ...    # two nodes in network namespaces, joined by one wire

Debian's packages munge, slurmctld, slurmd and slurm-client suffice, without systemd, cgroups or accounting. All files
lie in a temporary folder, and all daemons end with the test.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.tools import needs
from tests.support.waiting import patience

KILL_WAIT = 10  # seconds from SIGTERM to SIGKILL
_CONF = """
ClusterName=suite
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%h
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%h.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%h
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillWait={kill_wait}
"""


@dataclass(frozen=True)
class Host:
    """Name, address and network namespace of a node; no namespace for the machine itself."""

    name: str
    address: str
    space: str | None = None

    def inside(self, *command: str) -> list[str]:
        """The command line that runs `command` on this node."""
        if self.space is None:
            return list(command)
        into = ["nsenter", f"--net=/run/netns/{self.space}", "unshare", "--uts", "sh", "-c"]
        return [*into, 'hostname "$0" && exec "$@"', self.name, *command]


class Cluster:
    """A running Slurm cluster."""

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        self.folder, self.hosts, self.conf = folder, list(hosts), folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def run(self, *command: str, host: int = 0) -> str:
        """Output of a command on a node. Raises AssertionError if the command fails."""
        line = self.hosts[host].inside(*command)
        done = subprocess.run(
            line, env=self.environment, capture_output=True, text=True, timeout=patience(60), check=False
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self) -> None:
        for name in ("state", "log", "run", *(f"spool/{host.name}" for host in self.hosts)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        text = _CONF.format(first=self.hosts[0], folder=self.folder, ports=_free_ports(2), kill_wait=KILL_WAIT)
        names = ",".join(host.name for host in self.hosts)
        text += "".join(f"NodeName={h.name} NodeAddr={h.address} CPUs=4 RealMemory=1000\n" for h in self.hosts)
        self.conf.write_text(f"{text}PartitionName=tests Nodes={names} Default=YES MaxTime=INFINITE State=UP\n")
        run = self.folder / "run"
        self.run(
            *("munged", f"--key-file={key}", f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid"),
            *(f"--log-file={self.folder}/log/munged", f"--seed-file={run}/seed", "--force"),
        )
        self.run("slurmctld", "-f", str(self.conf))
        for number in range(len(self.hosts)):
            self.run("slurmd", "-f", str(self.conf), host=number)
        self.until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * len(self.hosts), 20)

    def until(self, reached: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition. Raises AssertionError with the logs of the daemons when it does not hold in time."""
        end = time.monotonic() + patience(seconds)
        while not reached():
            logs = "\n".join(file.read_text(errors="replace")[-1500:] for file in (self.folder / "log").iterdir())
            assert time.monotonic() < end, logs
            time.sleep(0.2)

    def stop(self) -> None:
        """End the jobs, then the daemons by their process ids."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--user=root")
            self.until(lambda: not self.run("squeue", "-h"), KILL_WAIT + 10)
        daemons = []
        for file in sorted((self.folder / "run").glob("*.pid"), reverse=True):  # slurmd, slurmctld, munged
            with suppress(OSError, ValueError, psutil.Error):
                daemons.append(psutil.Process(int(file.read_text())))
        for daemon in daemons:
            with suppress(psutil.Error):
                daemon.send_signal(signal.SIGTERM)
        for daemon in psutil.wait_procs(daemons, timeout=10)[1]:
            with suppress(psutil.Error):
                daemon.kill()


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@contextmanager
def cluster(hosts: Sequence[Host] = ()) -> Iterator[Cluster]:
    """A cluster of `hosts`, or of one node on the loopback interface. Skips the test if Slurm is not installed."""
    needs("slurm")
    if os.getuid() != 0:
        pytest.skip("slurm: needs root, as slurmd starts jobs")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    nodes = Cluster(folder, hosts or [Host(socket.gethostname(), "127.0.0.1")])
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Two hosts in network namespaces that one wire joins. Skips the test where namespaces are not allowed."""
    tag = secrets.token_hex(3)
    spaces = [f"suite-{tag}-{side}" for side in "ab"]
    hosts = [Host(f"host-{space[-8:]}", f"10.213.7.{number}", space) for number, space in enumerate(spaces, 1)]
    ends = [f"w{tag}{side}" for side in "ab"]
    commands = [["ip", "netns", "add", space] for space in spaces]
    commands.append(
        ["ip", "link", "add", ends[0], "netns", spaces[0], "type", "veth", "peer", ends[1], "netns", spaces[1]]
    )
    for host, end, space in zip(hosts, ends, spaces, strict=True):
        commands.append(["ip", "-n", space, "addr", "add", f"{host.address}/24", "dev", end])
        commands += [["ip", "-n", space, "link", "set", name, "up"] for name in (end, "lo")]
    try:
        for command in commands:
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=20)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"namespaces: {' '.join(command)}: {error}")
        yield hosts
    finally:
        for space in spaces:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, timeout=20)
