"""Start, supervise and end the processes of ranks.

Every rank connects to its parent over one socket: commands go down it, answers come up it, and its end of file is how
either side learns of the other's death. Ranks of several systems stay up together, so that systems take turns without
restarts. Ranks outside their round are stopped: each of gloo's threads wakes a hundred times a second, and fifty of
them take 4 % of two cores from the computing ranks. Signals reach the ranks of this host; ranks of other hosts
receive commands over their socket, and end with it."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
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
from suite.runner.launch.heartbeat import Heard
from suite.runner.launch.launch_command import command, environment, meets
from suite.runner.launch.rendezvous import LOOPBACK, reached, said_by, together
from suite.runner.launch.signals import LINUX, die_with_parent
from suite.runner.ranks.messages import RankReply

_LAST_WORDS = 1.5  # seconds to wait for the rank that others miss, after they have said that they miss it
_STACKS = 0.5, 3.0  # seconds for a rank of this host to write its stack, and for one of another to send it


class RunFailed(Exception):
    """A run cannot go on: its outcome and the reason for the record."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class Ranks:
    """The processes of one run."""

    def __init__(self, config: RunConfig, size: int, folder: Path) -> None:
        self.size, self.launch = size, config.launch
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path, self.job = folder / "ranks.log", folder / "job.json"
        bound, hosts = reached(self.launch)
        self.listener = socket.create_server((bound, 0), backlog=size + 8)
        self.token = secrets.token_hex(16)
        control = {"hosts": hosts, "port": self.listener.getsockname()[1], "token": self.token}
        control |= {"beat": self.launch.heartbeat_interval, "meets": meets(self.launch)}
        with open(os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"control": control, "config": config.plain()}, file)
        self.log = open(self.log_path, "wb")  # noqa: SIM115 - closed in stop()
        self.sockets: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}  # of ranks on this host
        self.hosts: dict[int, str] = {}
        self.port = 0  # where rank 0 waits for the others
        self.heard = Heard()
        self.stacks: dict[int, str] = {}  # of ranks on other hosts
        self.unread: dict[int, bytes] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.launcher: psutil.Process | None = None
        self.members: list[psutil.Process] = []
        self.family: list[psutil.Process] | None = None  # whom `stop` waits for
        self.ended = 0.0  # when they were told: grace counts from then, so that many systems take no longer than one
        self.dismissed = self.stopped = False
        self.parting = ""  # what went wrong while dismissed ranks closed
        self.selector = selectors.DefaultSelector()

    def start(self, deadline: float) -> None:
        """Starts the ranks and waits until all have connected. Raises RunFailed."""
        try:
            line = command(self.size, self.launch, self.job)
        except MissingDependency as error:
            raise RunFailed(Outcome.MISSING_DEPENDENCY, str(error)) from error
        # torchrun grants stopped ranks half a minute before it kills them; without it they die at once
        last = signal.SIGKILL if self.launch.launcher == "torchrun" else signal.SIGTERM
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment(self.launch.threads, self.launch.python_path),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, last),  # noqa: PLW1509 - a parent of ranks has no other threads
        )
        self.launcher = psutil.Process(self.process.pid)
        end = time.monotonic() + deadline
        self.listener.settimeout(0.1)
        while len(self.sockets) < self.size:
            with suppress(TimeoutError):
                self._welcome(self.listener.accept()[0])
            for rank, answer in self._read(0):
                raise self._trouble(rank, answer)  # nothing is asked yet: whatever is heard is bad news
            if (code := self.process.poll()) is not None:
                outcome = Outcome.LOST_RANK if code < 0 else Outcome.FAILED
                raise RunFailed(outcome, f"the launcher ended with {code}\n{self.log_tail()}")
            if time.monotonic() > end:
                raise RunFailed(
                    Outcome.TIMEOUT,
                    f"{len(self.sockets)} of {self.size} ranks connected in {deadline:g} s\n{self.log_tail()}",
                )
        if meets(self.launch):
            self._introduce()

    def _introduce(self) -> None:
        """Send every rank a working address of rank 0: rank 0's own address as seen from here or, where rank 0 is on
        this host, the address by which the rank itself has connected.
        """
        first, here = self.sockets[0], 0 in self.pids
        local = len(set(self.hosts.values())) == 1
        for peer in self.sockets.values():
            host = LOOPBACK if local else peer.getsockname()[0] if here else first.getpeername()[0]
            line = json.dumps({"do": "meet", "host": host, "port": self.port, "local": local})
            with suppress(OSError):  # its end of file says more, when it is asked
                peer.sendall(line.encode() + b"\n")

    def _welcome(self, peer: socket.socket) -> None:
        """Take a rank in by its first line; anyone without the token is turned away."""
        hello = said_by(peer, self.token)
        if hello is None or not 0 <= hello.rank < self.size or hello.rank in self.sockets:
            peer.close()
            return
        rank = hello.rank
        self.sockets[rank], self.hosts[rank], self.unread[rank] = peer, hello.host, hello.rest
        self.port = hello.port if rank == 0 else self.port
        if together(peer, hello.host):
            self.pids[rank] = hello.pid
            with suppress(psutil.Error):
                self.members.append(psutil.Process(hello.pid))
        self.selector.register(peer, selectors.EVENT_READ, rank)

    def ask(self, deadline: float, **message: Any) -> list[RankReply]:
        """Sends `message` to every rank; their answers, by rank. Raises RunFailed."""
        self._signal(signal.SIGCONT)
        line = json.dumps(message).encode() + b"\n"
        for peer in self.sockets.values():
            with suppress(OSError):  # its end of file says more, below
                peer.sendall(line)
        answers: dict[int, RankReply] = {}
        end, silence = time.monotonic() + deadline, self.launch.heartbeat_timeout
        self.heard.begin()
        while len(answers) < self.size:
            remaining = end - time.monotonic()
            missing = [rank for rank in range(self.size) if rank not in answers]
            if remaining <= 0:
                raise self._late(f"did not finish {message['do']!r} within {deadline:g} s", missing)
            if silent := self.heard.silent(missing, silence):
                raise self._late(f"gave no sign of life for {silence:g} s in {message['do']!r}", silent)
            for rank, answer in self._read(min(remaining, self.heard.next(missing, silence))):
                if answer is None or answer["event"] == "failed":
                    raise self._trouble(rank, answer)
                answers[rank] = answer
        return [answers[rank] for rank in range(self.size)]

    def _read(self, timeout: float) -> list[tuple[int, RankReply | None]]:
        """Output of the ranks; None for a rank that has closed its socket."""
        heard: list[tuple[int, RankReply | None]] = []
        if any(b"\n" in rest for rest in self.unread.values()):
            timeout = 0.0
        gone = []
        for key, _ in self.selector.select(timeout):
            rank, peer = key.data, self.sockets[key.data]
            try:
                data = peer.recv(1 << 20)
            except OSError:
                data = b""
            self.unread[rank] += data
            if not data:
                self.selector.unregister(peer)
                gone.append(rank)
        for rank, rest in self.unread.items():
            *lines, self.unread[rank] = rest.split(b"\n")
            heard.extend((rank, said) for line in lines if self._own_words(rank, said := json.loads(line)))
        return heard + [(rank, None) for rank in gone]  # a rank's own words come before its end

    def _own_words(self, rank: int, said: RankReply) -> bool:
        """Whether the rank itself says it, and not its listening thread."""
        self.heard.hear(rank, said.get("at"))
        if said["event"] == "stack":
            self.stacks[rank] = str(said["text"])
        return said["event"] not in ("beat", "stack")

    def _trouble(self, rank: int, answer: RankReply | None) -> RunFailed:
        """Why a run cannot go on. A rank's own reason counts first; then a rank that is gone without one; last what a
        rank raised because another one was gone (it says so), which may be heard before the other's end."""
        said: dict[int, RankReply] = {}
        silent: list[int] = []
        events = [(rank, answer)]
        end = time.monotonic() + _LAST_WORDS
        while True:
            for who, what in [*events, *self._read(0)]:
                if what is None:
                    silent += [who] if who not in said else []
                elif what["event"] == "failed":
                    said[who] = what
            primary = next((who for who, what in said.items() if not what["secondary"]), None)
            if primary is not None or silent or time.monotonic() > end:
                break
            time.sleep(0.02)
            events = []
        if primary is None and silent:
            return RunFailed(
                Outcome.LOST_RANK,
                f"rank {silent[0]} ended without a word "
                f"(a signal, or the kernel's out-of-memory killer)\n{self.log_tail()}",
            )
        who = next(iter(said)) if primary is None else primary
        return RunFailed(Outcome(said[who]["outcome"]), f"rank {who}: {said[who]['reason']}")

    def _late(self, what: str, ranks: Sequence[int]) -> RunFailed:
        """Request the stacks of these ranks: ranks of this host write them to the log, others send them."""
        when = self.heard.told(ranks)
        away = [rank for rank in ranks if rank not in self.pids]
        for rank in ranks:
            with suppress(OSError):
                if rank in self.pids:
                    os.kill(self.pids[rank], signal.SIGUSR1)
                else:
                    self.sockets[rank].sendall(b'{"do": "stack"}\n')
        end = time.monotonic() + (_STACKS[1] if away else _STACKS[0])
        while (remaining := end - time.monotonic()) > 0 and not (away and self.stacks.keys() >= set(away)):
            if away:
                self._read(remaining)
            else:
                time.sleep(remaining)
        stacks_text = [f"rank {rank} on {self.hosts[rank]}:\n{self.stacks.get(rank, 'no answer')}" for rank in away]
        names = ", ".join(map(str, ranks))
        return RunFailed(Outcome.TIMEOUT, "\n".join([f"rank {names} {what}", when, *stacks_text, self.log_tail(60)]))

    def log_tail(self, lines: int = 25) -> str:
        self.log.flush()
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def sleep(self) -> None:
        """Stops every thread of the ranks until they are asked, dismissed or ended."""
        if LINUX:  # elsewhere nothing would end a stopped process whose parent is gone
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for member in self.members:
            with suppress(psutil.Error):
                member.send_signal(number)

    def dismiss(self) -> None:
        """Tells the ranks that they are done; they close together and end. `stop` waits for it."""
        self.dismissed = True
        self._signal(signal.SIGCONT)
        for peer in self.sockets.values():
            with suppress(OSError):
                peer.sendall(b'{"do": "stop"}\n')

    def end(self) -> None:
        """Terminates ranks that were not dismissed, without waiting: `stop` does."""
        if self.family is not None:
            return
        self.ended = time.monotonic()
        self.family = self._family()  # now: the children of a process that is gone are not found any more
        if self.process is not None and not self.dismissed:
            for peer in self.sockets.values():
                peer.close()
            self.process.terminate()
            self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the ranks; what does not end is killed. Leaves no process. Once is enough."""
        if self.stopped:
            return
        self.stopped = True
        self.end()
        if self.process is not None:
            remaining = self.ended + self.launch.grace - time.monotonic()
            _, alive = psutil.wait_procs(self.family or [], timeout=max(0.0, remaining))
            for member in alive:
                with suppress(psutil.Error):
                    member.kill()
            psutil.wait_procs(alive, timeout=self.launch.grace)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(self.launch.grace)
            if self.dismissed:
                self.parting = self._parting(len(alive))
        for peer in self.sockets.values():
            peer.close()
        self.selector.close()
        self.listener.close()
        self.log.close()
        self.job.unlink(missing_ok=True)

    def _parting(self, killed: int) -> str:
        heard = []
        while more := self._read(0):
            heard += more
        said = [f"rank {rank}: {what['reason']}" for rank, what in heard if what and what["event"] == "failed"]
        late = [f"{killed} processes did not end within {self.launch.grace:g} s"] if killed else []
        return "\n".join([*said, *late])

    def _family(self) -> list[psutil.Process]:
        """The launcher, its children, and every rank that has said its process number (a number that was given to
        another process since is not taken for it)."""
        family: dict[int, psutil.Process] = {}
        for process in [*([self.launcher] if self.launcher else []), *self.members]:
            with suppress(psutil.Error):
                for member in (process, *(process.children(recursive=True) if process.is_running() else ())):
                    family[member.pid] = member
        return list(family.values())
