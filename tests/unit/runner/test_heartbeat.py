"""Heartbeat monitor of ranks, and the addresses at which ranks reach their parent."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from suite.config.launch import Launch
from suite.core.errors import InvalidRequest, RankError
from suite.runner.launch import heartbeat, rendezvous
from suite.runner.launch.heartbeat import HeartbeatMonitor
from tests.support.refusals import refused


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    return now


def test_rank_without_a_message_for_the_timeout_is_silent(clock: list[float]) -> None:
    monitor = HeartbeatMonitor()
    clock[0] += 50  # the time between two rounds does not count
    monitor.restart()
    assert monitor.seconds_until_timeout([0, 1], 10) == 10
    clock[0] += 6
    monitor.record(1, 7)
    assert monitor.silent_ranks([0, 1], 10) == []
    assert monitor.seconds_until_timeout([0, 1], 10) == 4
    clock[0] += 4
    assert monitor.silent_ranks([0, 1], 10) == [0]
    assert monitor.silent_ranks([1], 10) == []
    assert monitor.silent_ranks([0, 1], None) == []
    assert monitor.seconds_until_timeout([0], None) == float("inf")
    assert monitor.describe([0, 1]) == "no heartbeat of rank 0; last heartbeat of rank 1 4.0 s ago at batch 7"
    assert monitor.describe(range(2, 12)).endswith("; 2 more")


def test_launcher_and_slurm_job_decide_the_hosts_of_ranks() -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"}
    for launcher, environment, same_host in (
        ("mpiexec", {}, True),
        ("mpiexec", {"SLURM_JOB_NUM_NODES": "2"}, False),  # Open MPI uses all nodes of a job
        ("torchrun", {"SLURM_JOB_NUM_NODES": "2"}, True),
        ("srun", {}, False),
        ("srun", job, True),
        ("srun", job | {"SLURM_JOB_NODELIST": "a,b"}, False),
        ("srun", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a"}, False),  # a shell of salloc, on another host
    ):
        launch = Launch(name="local", launcher=launcher)
        assert rendezvous.all_ranks_on_this_host(launch, environment) is same_host, (launcher, environment)


def test_parent_listens_where_its_ranks_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = ("127.0.0.1", ["127.0.0.1"])
    assert rendezvous.parent_addresses(Launch(name="local", launcher="torchrun")) == loopback
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    address, hosts = rendezvous.parent_addresses(Launch(name="local", launcher="srun", host="auto"))
    assert address == "", "every interface"
    assert hosts[-1] == "127.0.0.1", "the last to try, as it is another host for a remote rank"
    for host in ("127.0.0.1", "lo"):
        assert rendezvous.parent_addresses(Launch(name="local", launcher="srun", host=host)) == loopback
    with refused(InvalidRequest, "launch.host"):
        rendezvous.parent_addresses(Launch(name="local", launcher="srun", host="no-such-host.invalid"))


def test_rank_skips_a_listener_without_the_token() -> None:
    """The parent's address may belong to another program on the rank's host, which must not learn the token."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        received: list[bytes] = []

        def accept_stranger_then_parent() -> None:
            for greeting in (b"220 some mail server\n" * 9, rendezvous.greeting("secret")):
                peer, _ = server.accept()
                peer.sendall(greeting)
                with suppress(ConnectionResetError):
                    received.append(peer.recv(100))
                peer.close()

        listener = threading.Thread(target=accept_stranger_then_parent)
        listener.start()
        connection = rendezvous.connect_to_parent(["127.0.0.1", "127.0.0.1"], port, "secret")
        connection.sendall(b"hello")
        connection.close()
        listener.join()
    assert b"".join(received) == b"hello"
    with pytest.raises(RankError):
        rendezvous.connect_to_parent(["127.0.0.1", "127.0.0.1"], port, "secret")
