"""Channel between a rank and its parent: one socket, and one listening thread.

Commands wait in a queue for the rank. The listening thread sends heartbeats while an answer is due, sends the stacks of
all threads on request, and ends the process with the parent, even if the rank is busy.
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

from suite.comm.rendezvous.launcher_env import launch_info
from suite.comm.rendezvous.rank_rendezvous import StoreAddress, bind_free_port
from suite.runner.launch.rendezvous import connect_to_parent
from suite.runner.ranks.messages import Endpoint, RankCommand

_CLOSE_TIMEOUT = 5.0  # seconds in which a rank may close after its parent is gone
_MAX_STACKS = 20_000  # bytes of the stacks that a rank sends


class ParentChannel:
    """A rank's end of the socket to its parent.

    Attributes:
        commands: Commands that the rank has not taken yet.
        batch: Number of the batch that is being trained; heartbeats carry it.
        closing: Set when the rank closes its system, which the end of the parent must not interrupt at once.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.socket = connect_to_parent(endpoint["hosts"], endpoint["port"], endpoint["token"])
        self.heartbeat_interval = endpoint["heartbeat_interval"]
        self.commands: queue.Queue[RankCommand] = queue.Queue()
        self.closing = False
        self.received = self.answered = 0  # number of commands; a single thread changes each
        self.batch: int | None = None
        self.send_lock = threading.Lock()
        start = launch_info()
        self.address = self.socket.getsockname()[0]
        self.awaits_rendezvous = bool(endpoint["sends_rendezvous"]) and start.size > 1
        self.rendezvous_messages: queue.Queue[RankCommand] = queue.Queue()
        self.listener, port = None, 0
        if self.awaits_rendezvous and start.rank == 0:  # on all interfaces where ranks may run on other hosts
            self.listener, port = bind_free_port(self.address if self.address.startswith("127.") else "0.0.0.0")
        hello = {"rank": start.rank, "pid": os.getpid(), "host": socket.gethostname(), "port": port}
        self.send(**hello, token=endpoint["token"])
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def rendezvous(self) -> StoreAddress | None:
        """Wait for the rendezvous address, which the parent sends when all ranks have connected.

        None if the launcher provides the address.
        """
        if not self.awaits_rendezvous:
            return None
        message = self.rendezvous_messages.get()
        return StoreAddress(message["host"], message["port"], message["local"], self.address, self.listener)

    def _listen(self) -> None:
        try:
            for message in self._messages():
                if message["do"] == "meet":
                    self.rendezvous_messages.put(message)
                elif message["do"] == "stack":
                    self.send(event="stack", text=_stacks())
                else:
                    self.received += 1
                    self.commands.put(message)
        except OSError:
            pass
        if self.closing:
            time.sleep(_CLOSE_TIMEOUT)  # closing needs the other ranks, which may be gone
        os._exit(3)

    def _messages(self) -> Iterator[RankCommand]:
        """Messages of the parent until it closes the socket. Sends heartbeats while an answer is due."""
        rest = b""
        while True:
            answer_due = self.received > self.answered
            if not select.select([self.socket], [], [], self.heartbeat_interval if answer_due else None)[0]:
                self.send(event="beat", batch=self.batch)
                continue
            data = self.socket.recv(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def answer(self, **message: Any) -> None:
        """Answer the command that was taken last."""
        self.answered += 1
        self.send(**message)

    def send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self.send_lock:
            self.socket.sendall(line)


def _stacks() -> str:
    """Stacks of all threads of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read(_MAX_STACKS).decode(errors="replace")
