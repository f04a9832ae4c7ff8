"""When a rank counts as silent, and where a parent listens for ranks of one host and of several."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from suite.config.compose import resolve
from suite.config.launch import Launch
from suite.core.errors import InvalidRequest, RankError
from suite.runner.launch import heartbeat, rendezvous
from suite.runner.launch.heartbeat import Heard
from suite.runner.runs import freeze
from tests.support.configs import unchecked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    return now


def test_a_rank_is_silent_when_nothing_was_heard_of_it_for_so_long(clock: list[float]) -> None:
    heard = Heard()
    clock[0] += 50  # between two turns nobody counts
    heard.begin()
    assert heard.next([0, 1], 10) == 10
    clock[0] += 6
    heard.hear(1, 7)
    assert heard.silent([0, 1], 10) == []
    assert heard.next([0, 1], 10) == 4
    clock[0] += 4
    assert heard.silent([0, 1], 10) == [0]
    assert heard.silent([1], 10) == []
    assert heard.silent([0, 1], None) == [], "null: never"
    assert heard.next([0], None) == float("inf")
    assert heard.told([0, 1]) == "rank 0 was never heard; rank 1 was heard 4.0 s ago at batch 7"
    assert heard.told(range(2, 12)).endswith("; 2 more")


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (
            {"heartbeat_interval": 0},
            "launch.heartbeat_interval=0; rule: more than 0 seconds; legal: launch.heartbeat_interval=5",
        ),
        ({"heartbeat_interval": "often"}, "launch.heartbeat_interval=often; rule: more than 0 seconds"),
        ({"heartbeat_timeout": True}, "launch.heartbeat_timeout=true; rule: more than 0 seconds, or null"),
    ],
)
def test_a_heartbeat_that_is_no_time_composes_no_run(launch: dict[str, object], says: str) -> None:
    changes = {f"launch.{name}": value for name, value in launch.items()}
    with pytest.raises(InvalidRequest, match=says):
        freeze(unchecked(resolve([]), changes), "")


@pytest.mark.parametrize(
    ("starter", "told", "one"),
    [
        ("mpiexec", {}, True),
        ("mpiexec", {"SLURM_JOB_NUM_NODES": "2"}, False),  # Open MPI spreads over the nodes of a job
        ("torchrun", {"SLURM_JOB_NUM_NODES": "2"}, True),
        ("srun", {}, False),
        ("srun", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a", "SLURMD_NODENAME": "a"}, True),
        ("srun", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a,b", "SLURMD_NODENAME": "a"}, False),
        ("srun", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a"}, False),  # a shell of salloc, on another host
    ],
)
def test_where_ranks_are(starter: str, told: dict[str, str], one: bool) -> None:
    assert rendezvous.on_one_host(Launch(name="local", launcher=starter), told) is one


def test_where_a_parent_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.reached(Launch(name="local", launcher="torchrun")) == ("127.0.0.1", ["127.0.0.1"])
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    bound, found = rendezvous.reached(Launch(name="local", launcher="srun", host="auto"))
    assert bound == "", "on every interface"
    assert found[-1] == "127.0.0.1", "the last resort: it is another host elsewhere"
    assert rendezvous.reached(Launch(name="local", launcher="srun", host="127.0.0.1")) == ("127.0.0.1", ["127.0.0.1"])
    assert rendezvous.reached(Launch(name="local", launcher="srun", host="lo")) == ("127.0.0.1", ["127.0.0.1"])
    with pytest.raises(InvalidRequest, match=r"launch\.host=no-such-host\.invalid"):
        rendezvous.reached(Launch(name="local", launcher="srun", host="no-such-host.invalid"))


def test_a_rank_passes_by_whoever_does_not_know_the_run() -> None:
    """The same address is somebody else's on another host; the token is not for them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        heard: list[bytes] = []

        def strange_then_known() -> None:
            for greeting in (b"220 some mail server\n" * 9, rendezvous.greeting("secret")):
                peer, _ = server.accept()
                peer.sendall(greeting)
                with suppress(ConnectionResetError):
                    heard.append(peer.recv(100))
                peer.close()

        listening = threading.Thread(target=strange_then_known)
        listening.start()
        found = rendezvous.connected(["127.0.0.1", "127.0.0.1"], port, "secret")
        found.sendall(b"hello")
        found.close()
        listening.join()
    assert b"".join(heard) == b"hello"
    with pytest.raises(RankError, match="no way to the parent"):
        rendezvous.connected(["127.0.0.1", "127.0.0.1"], port, "secret")
