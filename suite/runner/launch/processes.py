"""Start, supervise and end the processes of ranks.

Each rank connects to its parent over one socket, on which it receives commands and sends answers. If one side ends, the
other side reads an end of file. The ranks of several systems exist at the same time, so that rounds need no restarts.
Ranks outside their round are stopped with SIGSTOP. Otherwise their gloo threads would take CPU time from the computing
ranks: each wakes a hundred times a second, and fifty of them take 4 % of two cores. Signals reach only the ranks of
this host. Ranks of other hosts receive commands over their socket, and end when it closes.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from suite.config.run import RunConfig
from suite.core.errors import MissingDependency
from suite.core.record import Outcome
from suite.runner.launch.heartbeat import HeartbeatMonitor
from suite.runner.launch.launch_command import launch_command, parent_sends_rendezvous, rank_environment
from suite.runner.launch.rendezvous import LOOPBACK, is_same_host, parent_addresses, read_hello
from suite.runner.launch.signals import LINUX, die_with_parent
from suite.runner.ranks.messages import Endpoint, RankReply

_CAUSE_TIMEOUT = 1.5  # seconds to wait for the failure that caused the failures of other ranks
_STACK_TIMEOUT = 5.0  # seconds for a rank to write or send its stack
_STACK = "Current thread 0x"  # heading of a stack in the log, one per rank (faulthandler)


class RunFailed(Exception):
    """A run cannot continue: its outcome and reason for the record."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class RankGroup:
    """The processes of one run.

    Attributes:
        pids: Process ids of the ranks on this host.
        hosts: Host name of each rank.
        closing_failure: Failures of dismissed ranks while they closed, one per line.
    """

    def __init__(self, config: RunConfig, size: int, folder: Path) -> None:
        self.size, self.launch = size, config.launch
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path, self.job = folder / "ranks.log", folder / "job.json"
        address, hosts = parent_addresses(self.launch)
        self.listener = socket.create_server((address, 0), backlog=size + 8)
        self.token = secrets.token_hex(16)
        endpoint: Endpoint = {
            "hosts": hosts,
            "port": self.listener.getsockname()[1],
            "token": self.token,
            "heartbeat_interval": self.launch.heartbeat_interval,
            "sends_rendezvous": parent_sends_rendezvous(self.launch),
        }
        with open(os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"endpoint": endpoint, "config": config.plain()}, file)
        self.log = open(self.log_path, "wb")  # noqa: SIM115 - closed in stop()
        self.sockets: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        self.hosts: dict[int, str] = {}
        self.rendezvous_port = 0  # on which rank 0 waits for the others
        self.heartbeats = HeartbeatMonitor()
        self.stacks: dict[int, str] = {}  # received from ranks on other hosts
        self.unread: dict[int, bytes] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.launcher: psutil.Process | None = None
        self.members: list[psutil.Process] = []
        self.process_tree: list[psutil.Process] | None = None  # processes that `stop` waits for
        self.grace = float(self.launch.grace)  # at least, as a busy machine ends ranks no quicker than it started them
        self.terminated_at = 0.0  # the grace period begins here, so that many systems end in the time of one
        self.dismissed = self.stopped = False
        self.closing_failure = ""
        self.selector = selectors.DefaultSelector()

    def start(self, deadline: float) -> None:
        """Start the ranks and wait at most `deadline` seconds until all have connected. Raises RunFailed."""
        try:
            command = launch_command(self.size, self.launch, self.job)
        except MissingDependency as error:
            raise RunFailed(Outcome.MISSING_DEPENDENCY, str(error)) from error
        # torchrun grants stopped ranks half a minute before it kills them; without torchrun they end at once
        parent_death_signal = signal.SIGKILL if self.launch.launcher == "torchrun" else signal.SIGTERM
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=rank_environment(self.launch.threads, self.launch.python_path),
            start_new_session=True,
            # safe: a parent of ranks has no other threads
            preexec_fn=partial(die_with_parent, parent_death_signal),  # noqa: PLW1509
        )
        self.launcher = psutil.Process(self.process.pid)
        begin = time.monotonic()
        end = begin + deadline
        self.listener.settimeout(0.1)
        while len(self.sockets) < self.size:
            with suppress(TimeoutError):
                self._accept(self.listener.accept()[0])
            if replies := self._read(0):
                raise self._failure(replies)  # no command is open, so any reply is a failure
            if (code := self.process.poll()) is not None:
                outcome = Outcome.LOST_RANK if code < 0 else Outcome.FAILED
                raise RunFailed(outcome, f"the launcher ended with {code}\n{self.log_tail()}")
            if time.monotonic() > end:
                raise RunFailed(
                    Outcome.TIMEOUT,
                    f"{len(self.sockets)} of {self.size} ranks connected in {deadline:g} s\n{self.log_tail()}",
                )
        self.grace = max(self.grace, time.monotonic() - begin)
        if parent_sends_rendezvous(self.launch):
            self._send_rendezvous()

    def _send_rendezvous(self) -> None:
        """Send every rank an address of rank 0 that it can reach.

        This is the address of rank 0 as seen from here. If rank 0 runs on this host, it is the address by which the
        rank itself has connected.
        """
        rank_zero, rank_zero_is_here = self.sockets[0], 0 in self.pids
        local = len(set(self.hosts.values())) == 1
        for peer in self.sockets.values():
            remote = peer.getsockname()[0] if rank_zero_is_here else rank_zero.getpeername()[0]
            host = LOOPBACK if local else remote
            line = json.dumps({"do": "meet", "host": host, "port": self.rendezvous_port, "local": local})
            with suppress(OSError):  # the next request reports the end of the rank
                peer.sendall(line.encode() + b"\n")

    def _accept(self, peer: socket.socket) -> None:
        """Register the rank of a new connection; close the connection if it lacks the token."""
        hello = read_hello(peer, self.token)
        if hello is None or not 0 <= hello.rank < self.size or hello.rank in self.sockets:
            peer.close()
            return
        rank = hello.rank
        self.sockets[rank], self.hosts[rank], self.unread[rank] = peer, hello.host, hello.rest
        self.rendezvous_port = hello.port if rank == 0 else self.rendezvous_port
        if is_same_host(peer, hello.host):
            self.pids[rank] = hello.pid
            with suppress(psutil.Error):
                self.members.append(psutil.Process(hello.pid))
        self.selector.register(peer, selectors.EVENT_READ, rank)

    def request(self, deadline: float, **message: Any) -> list[RankReply]:
        """Send `message` to every rank and return the answers in rank order. Raises RunFailed."""
        self._signal(signal.SIGCONT)
        line = json.dumps(message).encode() + b"\n"
        for peer in self.sockets.values():
            with suppress(OSError):  # the loop below reports the end of the rank
                peer.sendall(line)
        answers: dict[int, RankReply] = {}
        end, timeout = time.monotonic() + deadline, self.launch.heartbeat_timeout
        self.heartbeats.restart()
        while len(answers) < self.size:
            remaining = end - time.monotonic()
            missing = [rank for rank in range(self.size) if rank not in answers]
            if remaining <= 0:
                raise self._timeout(f"did not finish {message['do']!r} within {deadline:g} s", missing)
            if silent := self.heartbeats.silent_ranks(missing, timeout):
                raise self._timeout(f"sent no heartbeat for {timeout:g} s in {message['do']!r}", silent)
            wait = min(remaining, self.heartbeats.seconds_until_timeout(missing, timeout))
            replies = self._read(wait)
            if any(reply is None or reply["event"] == "failed" for _, reply in replies):
                raise self._failure(replies)
            answers |= {rank: reply for rank, reply in replies if reply is not None}
        return [answers[rank] for rank in range(self.size)]

    def _read(self, timeout: float) -> list[tuple[int, RankReply | None]]:
        """Replies of the ranks, with None for a rank that has closed its socket."""
        replies: list[tuple[int, RankReply | None]] = []
        if any(b"\n" in rest for rest in self.unread.values()):
            timeout = 0.0
        closed = []
        for key, _ in self.selector.select(timeout):
            rank, peer = key.data, self.sockets[key.data]
            try:
                data = peer.recv(1 << 20)
            except OSError:
                data = b""
            self.unread[rank] += data
            if not data:
                self.selector.unregister(peer)
                closed.append(rank)
        for rank, rest in self.unread.items():
            *lines, self.unread[rank] = rest.split(b"\n")
            messages: list[RankReply] = [json.loads(line) for line in lines]
            replies.extend((rank, message) for message in messages if self._is_reply(rank, message))
        return replies + [(rank, None) for rank in closed]  # the last messages of a rank come before its end

    def _is_reply(self, rank: int, message: RankReply) -> bool:
        """Whether the rank itself sent a message. Those of its listening thread are recorded here."""
        self.heartbeats.record(rank, message.get("batch"))
        if message["event"] == "stack":
            self.stacks[rank] = str(message["text"])
        return message["event"] not in ("beat", "stack")

    def _failure(self, events: Sequence[tuple[int, RankReply | None]]) -> RunFailed:
        """The reason why a run cannot continue, given the replies of which one reports it.

        A failure of a rank's own counts first, then a rank that ended without a message. A failure that follows from
        another rank's end counts last; it may arrive before that end is noticed.
        """
        failures: dict[int, RankReply] = {}
        ended: list[int] = []
        end = time.monotonic() + _CAUSE_TIMEOUT
        while True:
            for sender, message in [*events, *self._read(0)]:
                if message is None:
                    ended += [sender] if sender not in failures else []
                elif message["event"] == "failed":
                    failures[sender] = message
            primary = next((sender for sender, message in failures.items() if not message["secondary"]), None)
            if primary is not None or ended or time.monotonic() > end:
                break
            time.sleep(0.02)
            events = []
        if primary is None and ended:
            return RunFailed(
                Outcome.LOST_RANK,
                f"rank {ended[0]} ended without a message "
                f"(a signal, or the kernel's out-of-memory killer)\n{self.log_tail()}",
            )
        sender = next(iter(failures)) if primary is None else primary
        return RunFailed(Outcome(failures[sender]["outcome"]), f"rank {sender}: {failures[sender]['reason']}")

    def _timeout(self, reason: str, ranks: Sequence[int]) -> RunFailed:
        """The failure of ranks that exceeded a limit, with their stacks.

        Ranks of this host write their stacks to the log; ranks of other hosts send them.
        """
        heartbeats = self.heartbeats.describe(ranks)
        remote = {rank for rank in ranks if rank not in self.pids}
        written = self.log_tail(sys.maxsize).count(_STACK) + len(ranks) - len(remote)
        for rank in ranks:
            with suppress(OSError):
                if rank in self.pids:
                    os.kill(self.pids[rank], signal.SIGUSR1)
                else:
                    self.sockets[rank].sendall(b'{"do": "stack"}\n')
        end = time.monotonic() + _STACK_TIMEOUT
        while (remaining := end - time.monotonic()) > 0:
            if remote - self.stacks.keys():
                self._read(remaining)
            elif self.log_tail(sys.maxsize).count(_STACK) < written:
                time.sleep(0.05)
            else:
                time.sleep(0.2)  # the frames follow their heading
                break
        stacks = [
            f"rank {rank} on {self.hosts[rank]}:\n{self.stacks.get(rank, 'no answer')}" for rank in sorted(remote)
        ]
        names = ", ".join(map(str, ranks))
        return RunFailed(Outcome.TIMEOUT, "\n".join([f"rank {names} {reason}", heartbeats, *stacks, self.log_tail(60)]))

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the ranks' output."""
        self.log.flush()
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def suspend(self) -> None:
        """Stop every thread of the ranks until the next request, dismissal or end."""
        if LINUX:  # elsewhere a stopped process would outlive its parent
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for member in self.members:
            with suppress(psutil.Error):
                member.send_signal(number)

    def dismiss(self) -> None:
        """Request that the ranks close together and end. `stop` waits for them."""
        self.dismissed = True
        self._signal(signal.SIGCONT)
        for peer in self.sockets.values():
            with suppress(OSError):
                peer.sendall(b'{"do": "stop"}\n')

    def terminate(self) -> None:
        """Terminate ranks that were not dismissed, without waiting for their end."""
        if self.process_tree is not None:
            return
        self.terminated_at = time.monotonic()
        self.process_tree = self._collect_processes()  # now, as the children of an ended process are not found later
        if self.process is not None and not self.dismissed:
            for peer in self.sockets.values():
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)  # also ends a request of another thread; `stop` closes
            self.process.terminate()
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the ranks, kill those that remain after the grace period, and release all resources."""
        if self.stopped:
            return
        self.stopped = True
        self.terminate()
        if self.process is not None:
            remaining = self.terminated_at + self.grace - time.monotonic()
            _, alive = psutil.wait_procs(self.process_tree or [], timeout=max(0.0, remaining))
            late = f"{len(alive)} processes did not end within {self.grace:.3g} s" if alive else ""
            if hanging := [rank for rank, pid in self.pids.items() if self.dismissed and pid in {p.pid for p in alive}]:
                late += f"\n{self._timeout('did not close', hanging)}"
            for member in alive:
                with suppress(psutil.Error):
                    member.kill()
            psutil.wait_procs(alive, timeout=self.grace)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(self.grace)
            if self.dismissed:
                self.closing_failure = self._collect_closing_failures(late)
        for peer in self.sockets.values():
            peer.close()
        self.selector.close()
        self.listener.close()
        self.log.close()
        self.job.unlink(missing_ok=True)

    def _collect_closing_failures(self, late: str) -> str:
        replies = []
        while more := self._read(0):
            replies += more
        failures = [
            f"rank {rank}: {reply['reason']}" for rank, reply in replies if reply and reply["event"] == "failed"
        ]
        return "\n".join(filter(None, [*failures, late]))

    def _collect_processes(self) -> list[psutil.Process]:
        """The launcher, the ranks of this host, and their children. A reused process id is not followed."""
        processes: dict[int, psutil.Process] = {}
        for process in [*([self.launcher] if self.launcher else []), *self.members]:
            with suppress(psutil.Error):
                for member in (process, *(process.children(recursive=True) if process.is_running() else ())):
                    processes[member.pid] = member
        return list(processes.values())
