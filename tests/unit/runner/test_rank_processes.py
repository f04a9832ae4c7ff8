"""Processes of ranks: heartbeat, addresses, environment, precision, and the outcome of an error."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations
from multiprocessing import Pipe
from pathlib import Path

import pytest

from suite.comm.rendezvous.launcher_env import LaunchInfo, launch_info
from suite.config.launch import Launch
from suite.core.errors import Diverged, InvalidRequest, MissingDependency, RankError, Unsupported
from suite.core.record import Outcome
from suite.runner.ending import ending_of
from suite.runner.launch import rendezvous
from suite.runner.launch.launch_command import rank_environment
from suite.runner.launch.processes import RankGroup, RunFailed
from suite.runner.ranks.messages import RankReply
from suite.runner.runs import expand


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RankGroup]:
    """Three ranks without processes."""
    [run] = expand(["system=axonn", "launch.heartbeat_interval=0.1", "launch.heartbeat_timeout=0.6"])
    group = RankGroup(run.config, 3, tmp_path / "scratch")
    group.hellos = {rank: {"host": "here"} for rank in range(3)}
    yield group
    group.stop()


def test_silent_rank_ends_a_run_before_its_deadline(group: RankGroup) -> None:
    (one, rank_0), (two, rank_1), (three, _rank_2) = Pipe(), Pipe(), Pipe()
    group.connections = {one: 0, two: 1, three: 2}
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.1):
            rank_1.send_bytes(b'{"event": "beat", "batch": 7}')

    sender = threading.Thread(target=beat)
    sender.start()
    try:
        for deadline, reason in ((60.0, "rank 2 sent no heartbeat for 0.6 s"), (0.3, "rank 1, 2 did not finish")):
            rank_0.send_bytes(b'{"event": "done"}')
            with pytest.raises(RunFailed, match=reason) as failure:
                group.request(deadline, do="train")
            assert failure.value.outcome is Outcome.TIMEOUT
    finally:
        ended.set()
        sender.join()
    assert re.search(r"last heartbeat of rank 1 0\.\d s ago at batch 7", failure.value.reason)


FAULT = {"event": "failed", "outcome": "failed", "reason": "its own fault", "secondary": False}
ENDED = {"event": "failed", "outcome": "lost_rank", "reason": "a peer ended", "secondary": True}


ARRIVALS = permutations([(0, ENDED), (1, FAULT), (2, {"event": "done"}), (1, None)])


@pytest.mark.parametrize(  # the end of a rank comes after its messages
    "order", [order for order in ARRIVALS if order.index((1, FAULT)) < order.index((1, None))]
)
def test_own_fault_of_a_rank_counts_among_messages_that_arrive_together(
    order: Sequence[tuple[int, RankReply | None]], group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = [list(order)]
    monkeypatch.setattr(group, "_read", lambda timeout: arrived.pop() if arrived else [])
    with pytest.raises(RunFailed) as failure:
        group.request(5.0, do="train")
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


def test_rank_skips_a_listener_without_the_key() -> None:
    """The parent's address may belong to another program on the rank's host, which must not learn the key."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        received: list[bytes] = []

        def accept_strangers_then_parent() -> None:
            mail, _ = server.accept()
            mail.sendall(b"220 some mail server\n" * 9)
            with suppress(ConnectionResetError):
                received.append(mail.recv(100))
            mail.close()
            with pytest.raises(ConnectionError):
                rendezvous.authenticated(server.accept()[0], "another key", is_parent=True)
            received.append(rendezvous.authenticated(server.accept()[0], "secret", is_parent=True).recv_bytes())

        listener = threading.Thread(target=accept_strangers_then_parent)
        listener.start()
        connection, *addresses = rendezvous.connect_to_parent(["127.0.0.1"] * 3, port, "secret")
        connection.send_bytes(b"hello")
        listener.join()
        connection.close()
    assert (b"".join(received), addresses) == (b"hello", ["127.0.0.1"] * 2)
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
        assert ending_of(error)[0] is outcome, error
