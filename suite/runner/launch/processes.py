"""Start, supervise and end the processes of ranks.

Each rank connects to its parent over one socket, on which it receives commands and sends answers. If one side ends, the
other side reads an end of file. The ranks of several systems exist at the same time, so that rounds need no restarts.
Ranks outside their round are stopped with SIGSTOP. Otherwise their gloo threads would take CPU time from the computing
ranks: each wakes a hundred times a second, and fifty of them take 4 % of two cores. Signals reach only the ranks of
this host. Ranks of other hosts receive commands over their socket, and end when it closes.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from suite.config.run import RunConfig
from suite.core.record import Outcome
from suite.runner.launch.launch_command import launch_command, rank_environment
from suite.runner.launch.process_tree import end_processes, process_tree
from suite.runner.launch.rendezvous import authenticated, parent_addresses, parent_sends_rendezvous
from suite.runner.launch.signals import LINUX, die_with_parent
from suite.runner.ranks.messages import Hello, RankReply

_CAUSE_TIMEOUT = 1.5  # seconds to wait for the failure that caused the failures of other ranks
_LONGEST_WAIT = 3600.0  # seconds; poll(2) takes at most 24 days
_MAX_DESCRIBED = 8  # ranks whose last heartbeat a reason contains

Replies = Sequence[tuple[int, RankReply | None]]  # by rank; None for a rank that has closed its connection


class RunFailed(Exception):
    """A run cannot continue: its outcome and reason for the record."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class RankGroup:
    """The processes of one run.

    Attributes:
        connections: Open connections, each with its rank.
        hellos: First message of each rank.
        addresses: Address of each rank as this process sees it; empty where each rank has reached this process.
        members: Processes of the ranks on this host.
        heard: Time of the last message of each rank since the open command.
        batches: Number of the last batch in a heartbeat of each rank.
        processes: Processes that `stop` waits for; None before `terminate`.
        closing_failure: Failures of dismissed ranks while they closed, one per line.
    """

    def __init__(self, config: RunConfig, size: int, folder: Path) -> None:
        self.size, self.launch = size, config.launch
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path, self.job = folder / "ranks.log", folder / "job.json"
        address, hosts = parent_addresses(self.launch)
        self.listener = socket.create_server((address, 0), backlog=size + 8)
        self.key = secrets.token_hex(16)
        endpoint = {"hosts": hosts, "port": self.listener.getsockname()[1], "key": self.key}
        with open(os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"endpoint": endpoint, "config": config.plain()}, file)
        self.log = open(self.log_path, "wb")  # noqa: SIM115 - closed in stop()
        self.connections: dict[Connection, int] = {}
        self.hellos: dict[int, Hello] = {}
        self.addresses: dict[int, str] = {}
        self.members: dict[int, psutil.Process] = {}
        self.heard: dict[int, float] = {}
        self.batches: dict[int, int] = {}
        self.process: psutil.Popen | None = None
        self.processes: list[psutil.Process] | None = None
        self.grace = float(self.launch.grace)  # at least, as a busy machine ends ranks no quicker than it started them
        self.terminated_at = 0.0  # the grace period begins here, so that many systems end in the time of one
        self.dismissed = False
        self.closing_failure = ""

    def start(self, deadline: float) -> None:
        """Start the ranks and wait at most `deadline` seconds until all have connected.

        Raises RunFailed, and MissingDependency without the launcher.
        """
        # torchrun grants stopped ranks half a minute before it kills them; without torchrun they end at once
        parent_death_signal = signal.SIGKILL if self.launch.launcher == "torchrun" else signal.SIGTERM
        self.process = psutil.Popen(
            launch_command(self.size, self.launch, self.job),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=rank_environment(self.launch.threads, self.launch.python_path),
            start_new_session=True,
            # safe: a parent of ranks has no other threads
            preexec_fn=partial(die_with_parent, parent_death_signal),
        )
        begin = time.monotonic()
        while len(self.hellos) < self.size:
            if wait([self.listener], 0.1):
                self._accept()
            if replies := self._read(0):
                raise self._failure(replies)  # no command is open, so any reply is a failure
            if (code := self.process.poll()) is not None:
                outcome = Outcome.LOST_RANK if code < 0 else Outcome.FAILED
                raise RunFailed(outcome, f"the launcher ended with {code}\n{self.log_tail()}")
            if time.monotonic() > begin + deadline:
                connected = f"{len(self.hellos)} of {self.size} ranks connected in {deadline:g} s"
                raise RunFailed(Outcome.TIMEOUT, f"{connected}\n{self.log_tail()}")
        self.grace = max(self.grace, time.monotonic() - begin)
        if parent_sends_rendezvous(self.launch):
            self._send(do="meet", host=self.addresses[0], port=self.hellos[0]["port"])

    def _accept(self) -> None:
        """Register the rank of a new connection, unless another program has connected."""
        try:
            peer, (address, _) = self.listener.accept()
            is_local = address == peer.getsockname()[0]
            connection = authenticated(peer, self.key, is_parent=True)
            hello: Hello = json.loads(connection.recv_bytes())
        except (OSError, EOFError):
            return
        rank = hello["rank"]
        self.connections[connection], self.hellos[rank] = rank, hello
        self.addresses[rank] = "" if is_local else address
        if is_local and hello["host"] == socket.gethostname():
            with suppress(psutil.Error):
                self.members[rank] = psutil.Process(hello["pid"])

    @property
    def hosts(self) -> list[str]:
        """Host name of each connected rank, in rank order."""
        return [self.hellos[rank]["host"] for rank in sorted(self.hellos)]

    def request(self, deadline: float, **message: Any) -> list[RankReply]:
        """Send `message` to every rank and return the answers in rank order. Raises RunFailed."""
        self._signal(signal.SIGCONT)
        self._send(**message, seconds=deadline)
        answers: dict[int, RankReply] = {}
        begin, timeout = time.monotonic(), self.launch.heartbeat_timeout or math.inf
        self.heard = dict.fromkeys(range(self.size), begin)  # silence before this moment does not count
        while missing := [rank for rank in range(self.size) if rank not in answers]:
            due = min(begin + deadline, min(self.heard[rank] for rank in missing) + timeout)
            replies = self._read(due - time.monotonic())
            if any(reply is None or reply["event"] == "failed" for _, reply in replies):
                raise self._failure(replies)
            answers |= {rank: reply for rank, reply in replies if reply is not None}
            late, now = [rank for rank in missing if rank not in answers], time.monotonic()
            if late and now > begin + deadline:
                raise self._timeout(late, f"did not finish {message['do']!r} within {deadline:g} s")
            if silent := [rank for rank in late if now > self.heard[rank] + timeout]:
                raise self._timeout(silent, f"sent no heartbeat for {timeout:g} s in {message['do']!r}")
        return [answers[rank] for rank in range(self.size)]

    def _send(self, **message: Any) -> None:
        for connection in list(self.connections):
            with suppress(OSError):  # the next read reports the end of the rank
                connection.send_bytes(json.dumps(message).encode())

    def _read(self, timeout: float) -> Replies:
        """The replies that arrive within `timeout` seconds, as soon as there are some. Heartbeats are recorded."""
        replies: list[tuple[int, RankReply | None]] = []
        timeout = min(max(0.0, timeout), _LONGEST_WAIT)
        while ready := wait(self.connections, timeout):
            timeout = 0.0  # what has arrived together is returned together
            for connection, rank in list(self.connections.items()):
                if connection not in ready:
                    continue
                try:
                    reply: RankReply = json.loads(connection.recv_bytes())
                except (OSError, EOFError):
                    del self.connections[connection]
                    replies.append((rank, None))
                    continue
                self.heard[rank] = time.monotonic()
                if reply["event"] != "beat":
                    replies.append((rank, reply))
                elif (batch := reply["batch"]) is not None:
                    self.batches[rank] = batch
        return replies

    def _failure(self, replies: Replies) -> RunFailed:
        """The reason why a run cannot continue, given the replies of which one reports it.

        A failure of a rank's own counts first, then a rank that ended without a message. A failure that follows from
        another rank's end counts last; it may arrive before that end is noticed.
        """
        failures: dict[int, RankReply] = {}
        ended: list[int] = []
        end = time.monotonic() + _CAUSE_TIMEOUT
        while True:
            for rank, reply in replies:
                if reply is None:
                    ended += [rank] if rank not in failures else []
                elif reply["event"] == "failed":
                    failures[rank] = reply
            own = [rank for rank, reply in failures.items() if not reply["secondary"]]
            if own or ended or time.monotonic() > end:
                break
            replies = self._read(end - time.monotonic())
        if ended and not own:
            return RunFailed(
                Outcome.LOST_RANK,
                f"rank {ended[0]} ended without a message "
                f"(a signal, or the kernel's out-of-memory killer)\n{self.log_tail()}",
            )
        rank = own[0] if own else next(iter(failures))
        return RunFailed(Outcome(failures[rank]["outcome"]), f"rank {rank}: {failures[rank]['reason']}")

    def _timeout(self, ranks: Sequence[int], reason: str) -> RunFailed:
        """The failure of ranks that exceeded a limit. They have written their stacks to the log (rank_channel)."""
        several, now = len(set(self.hosts)) > 1, time.monotonic()
        names = ", ".join(f"{rank} on {self.hosts[rank]}" if several else str(rank) for rank in ranks)
        heartbeats = "; ".join(
            f"last heartbeat of rank {rank} {now - self.heard[rank]:.1f} s ago"
            + (f" at batch {self.batches[rank]}" if rank in self.batches else "")
            for rank in ranks[:_MAX_DESCRIBED]
        )
        return RunFailed(Outcome.TIMEOUT, f"rank {names} {reason}\n{heartbeats}\n{self.log_tail(60)}")

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the ranks' output."""
        self.log.flush()
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def suspend(self) -> None:
        """Stop every thread of the ranks until the next request, dismissal or end."""
        if LINUX:  # elsewhere a stopped process would outlive its parent
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for member in self.members.values():
            with suppress(psutil.Error):
                member.send_signal(number)

    def dismiss(self) -> None:
        """Request that the ranks close together and end. `stop` waits for them."""
        self.dismissed = True
        self._signal(signal.SIGCONT)
        self._send(do="stop", seconds=self.grace)

    def terminate(self) -> None:
        """Terminate ranks that were not dismissed, without waiting for their end."""
        if self.processes is not None or self.process is None:
            return
        self.terminated_at = time.monotonic()
        self.processes = process_tree(self.process, *self.members.values())
        if not self.dismissed:
            self._send(do="exit")
            with suppress(psutil.NoSuchProcess):
                self.process.terminate()
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the ranks, kill those that remain after the grace period, and release all resources."""
        if self.log.closed:
            return
        self.terminate()
        if self.process is not None:
            late = end_processes(self.processes or [], self.terminated_at + self.grace - time.monotonic())
            with suppress(psutil.TimeoutExpired):
                self.process.wait(self.grace)
            if self.dismissed:
                failures = [f"rank {rank}: {reply['reason']}" for rank, reply in self._read(0) if reply]
                if late:
                    failures.append(f"{len(late)} processes did not end within {self.grace:.3g} s\n{self.log_tail(60)}")
                self.closing_failure = "\n".join(failures)
        for connection in self.connections:
            connection.close()
        self.listener.close()
        self.log.close()
        self.job.unlink(missing_ok=True)
