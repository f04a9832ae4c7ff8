"""Channel between a rank and its parent: one socket, and one thread that listens.

Commands wait for the rank. The listening thread says that the rank lives while it owes an answer, tells where all its
threads are when asked, and ends the process with the parent, whatever the rank is doing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from suite.comm.rendezvous.launcher_env import started
from suite.comm.rendezvous.rank_rendezvous import Meeting, bound
from suite.runner.launch.rendezvous import connected
from suite.runner.ranks.messages import Endpoint, RankCommand

_LEAVE = 5.0  # seconds a rank may take to close after its parent is gone
_STACK = 20_000  # bytes of a rank's report on its threads


class Control:
    """The rank's end of the socket. meets: whether its parent sends the rendezvous address."""

    def __init__(self, control: Endpoint) -> None:
        self.socket = connected(control["hosts"], control["port"], control["token"])
        self.beat = control["beat"]
        self.commands: queue.Queue[RankCommand] = queue.Queue()
        self.stopping = False
        self.received = self.answered = 0  # commands; each is counted by one thread alone
        self.at: int | None = None  # the batch that is trained
        self.said = threading.Lock()
        start = started()
        self.own = self.socket.getsockname()[0]
        self.meets = bool(control["meets"]) and start.size > 1
        self.told: queue.Queue[RankCommand] = queue.Queue()
        self.listener, port = None, 0
        if self.meets and start.rank == 0:  # on all interfaces, where ranks may be on other hosts
            self.listener, port = bound(self.own if self.own.startswith("127.") else "0.0.0.0")
        hello = {"rank": start.rank, "pid": os.getpid(), "host": socket.gethostname(), "port": port}
        self.say(**hello, token=control["token"])
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def meeting(self) -> Meeting | None:
        """The rendezvous address, which the parent sends when all ranks are connected. None where something else
        tells them.
        """
        if not self.meets:
            return None
        address = self.told.get()
        return Meeting(address["host"], address["port"], address["local"], self.own, self.listener)

    def _listen(self) -> None:
        try:
            for message in self._messages():
                if message["do"] == "meet":
                    self.told.put(message)
                elif message["do"] == "stack":
                    self.say(event="stack", text=_stacks())
                else:
                    self.received += 1
                    self.commands.put(message)
        except OSError:
            pass
        if self.stopping:
            time.sleep(_LEAVE)  # closing needs the other ranks, and they may be gone
        os._exit(3)

    def _messages(self) -> Iterator[RankCommand]:
        """Messages of the parent, until it closes the socket. Says that the rank lives while an answer is owed."""
        rest = b""
        while True:
            owed = self.received > self.answered
            if not select.select([self.socket], [], [], self.beat if owed else None)[0]:
                self.say(event="beat", at=self.at)
                continue
            data = self.socket.recv(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def answer(self, **message: Any) -> None:
        """To the command that was taken last."""
        self.answered += 1
        self.say(**message)

    def say(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self.said:
            self.socket.sendall(line)


def _stacks() -> str:
    """Where every thread of this process is."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read(_STACK).decode(errors="replace")
