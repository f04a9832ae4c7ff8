"""Processes of ranks: heartbeat, addresses, environment, precision, and the outcome of an error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.config.compose import composed
from suite.config.launch import Launch
from suite.core.errors import Diverged, InvalidRequest, MissingDependency, PeerEnded, RankError, Unsupported
from suite.core.record import Outcome
from suite.runner import precision
from suite.runner.launch import heartbeat, rendezvous
from suite.runner.launch.heartbeat import HeartbeatMonitor
from suite.runner.launch.launch_command import rank_environment
from suite.runner.launch.processes import RankGroup, RunFailed
from suite.runner.ranks.messages import RankReply
from suite.runner.ranks.rank import follows_from_peer, outcome_of_error
from suite.runner.runs import expand, freeze
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


FAULT = {"event": "failed", "outcome": "failed", "reason": "its own fault", "secondary": False}
ENDED = {"event": "failed", "outcome": "lost_rank", "reason": "a peer ended", "secondary": True}


ARRIVALS = permutations([(0, ENDED), (1, FAULT), (2, {"event": "done"}), (1, None)])


@pytest.mark.parametrize(  # the end of a rank comes after its messages
    "order", [order for order in ARRIVALS if order.index((1, FAULT)) < order.index((1, None))]
)
def test_own_fault_of_a_rank_counts_among_messages_that_arrive_together(
    order: Sequence[tuple[int, RankReply | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = expand(["system=axonn", f"reports={tmp_path}"])
    group = RankGroup(run.config, 3, tmp_path / "scratch")
    arrived = [list(order)]
    monkeypatch.setattr(group, "_read", lambda timeout: arrived.pop() if arrived else [])
    with pytest.raises(RunFailed) as failure:
        group.request(5.0, do="train")
    group.stop()
    assert (failure.value.outcome, failure.value.reason) == (Outcome.FAILED, "rank 1: its own fault")


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


# -- environment of ranks: no variable that a launcher set for the process that starts them --

LAUNCHERS = (  # variables of launchers
    {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "x"},
    {"PMI_RANK": "1", "PMI_SIZE": "2"},
    dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEPID"), "1")
    | {"SLURM_STEP_NUM_TASKS": "2"},
)


def test_variables_of_an_outer_launcher_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in LAUNCHERS:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert launch_info().size == 2
            environment = rank_environment(3, ["own"])
        assert launch_info(environment) == LaunchInfo("none")
        assert not variables.keys() & environment.keys()


def test_settings_of_the_user_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash", "PRTE_MCA_x": "y", "RANKING": "1", "OMP_NUM_THREADS": "7"}
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    environment = rank_environment(3, ["own"])
    assert {name: environment[name] for name in user} == user | {"OMP_NUM_THREADS": "3"}
    assert "own" in environment["PYTHONPATH"].split(":")


# -- outcome of a run in which a rank raises an exception --


def test_exception_type_decides_the_outcome() -> None:
    for error, outcome in (
        (Diverged("16 batches in a row overflow"), Outcome.DIVERGED),
        (InvalidRequest("no"), Outcome.UNSUPPORTED),
        (Unsupported("no"), Outcome.UNSUPPORTED),
        (MissingDependency("x", "pip install x"), Outcome.MISSING_DEPENDENCY),
        (ModuleNotFoundError("x"), Outcome.MISSING_DEPENDENCY),
        (MemoryError(), Outcome.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Outcome.OOM),
        (ValueError("wrong"), Outcome.FAILED),
    ):
        assert outcome_of_error(error) is outcome, error


def test_lost_connection_follows_from_a_peer() -> None:
    for error in (PeerEnded("a collective broke"), RuntimeError("Connection reset by peer")):
        assert follows_from_peer(error)
    for error in (RankError("rank 0 closes with values unreceived"), ValueError("wrong")):
        assert not follows_from_peer(error)


# -- choice of precision=auto by processor --


def test_cpu_flags_of_x86_and_arm(tmp_path: Path) -> None:
    for text, flags in (
        ("flags\t\t: fpu avx2 avx512_bf16 f16c\n", {"fpu", "avx2", "avx512_bf16", "f16c"}),
        ("processor : 0\nFeatures\t: fp bf16\nprocessor : 1\nFeatures : i8mm\n", {"fp", "bf16", "i8mm"}),
        ("", set()),
    ):
        file = tmp_path / f"{len(flags)} flags"
        file.write_text(text)
        assert precision.cpu_flags(file) == flags
    assert precision.cpu_flags(tmp_path / "nothing") == frozenset()


def test_auto_precision_depends_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag, device, half in (
        ("avx2", "cpu", None),
        ("avx512_bf16", "cpu", "bfloat16"),
        ("amx_bf16", "cpu", "bfloat16"),
        ("bf16", "cpu", "bfloat16"),
        ("", "cuda", "bfloat16"),
    ):
        monkeypatch.setattr(precision, "cpu_flags", lambda flag=flag: frozenset([flag]))
        assert precision.resolve_half("auto", device) == half, flag
        if device == "cpu":
            assert freeze(composed(["precision=auto"]), "").config.precision.half == half
    assert [precision.resolve_half(half, "cuda") for half in (None, "float16")] == [None, "float16"]
