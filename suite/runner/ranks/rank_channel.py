"""Channel between a rank and its parent: one connection, and one listening thread.

Commands wait in a queue for the rank. While a command is open, the listening thread sends heartbeats, and a watchdog
writes the stacks of all threads to the rank's output shortly before the parent gives up: at 80 % of the command's
limit, or of the heartbeat timeout where a held interpreter lock keeps the listening thread from its heartbeats. The
listening thread ends the process with the parent, even if the rank is busy.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from suite.comm.rendezvous.launcher_env import launch_info
from suite.comm.rendezvous.rank_rendezvous import reserve_port, use_interface_of
from suite.config.launch import Launch
from suite.runner.launch.rendezvous import connect_to_parent, parent_sends_rendezvous
from suite.runner.ranks.messages import RankCommand

_CLOSE_TIMEOUT = 5.0  # seconds in which a rank may close after its parent is gone
_LONGEST_POLL = 3600.0  # seconds; poll(2) takes at most 24 days
_STACKS_AT = 0.8  # share of a time limit after which a rank writes its stacks


class ParentChannel:
    """A rank's end of the connection to its parent.

    Attributes:
        commands: Commands that the rank has not taken yet.
        batch: Number of the batch that is being trained; heartbeats carry it.
        closing: Set when the rank closes its system, which the end of the parent must not interrupt at once.
    """

    def __init__(self, launch: Launch, hosts: Sequence[str], port: int, key: str) -> None:
        self.connection, self.address, self.parent_address = connect_to_parent(hosts, port, key)
        self.launch = launch
        self.commands: queue.Queue[RankCommand] = queue.Queue()
        self.closing = False
        self.batch: int | None = None
        self.lock = threading.Lock()  # of what is sent, and of the two attributes below
        self.command_open = False
        self.stacks_at = 0.0
        self.reserved = reserve_port()
        hello = {"rank": launch_info().rank, "pid": os.getpid(), "host": socket.gethostname()}
        self.send(**hello, port=self.reserved.getsockname()[1])
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def meet(self) -> None:
        """Wait for the address at which the ranks meet, if their launcher does not set it. It is the first command."""
        if parent_sends_rendezvous(self.launch):
            message = self.commands.get()
            address = message["host"] or self.parent_address
            os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(message["port"])}
            use_interface_of(self.address)

    def _listen(self) -> None:
        """Receive commands until the parent sends `exit` or is gone."""
        interval = min(self.launch.heartbeat_interval, _LONGEST_POLL)
        with suppress(EOFError, OSError):
            while True:
                if not self.connection.poll(interval if self.command_open else None):
                    self._beat()
                    continue
                message: RankCommand = json.loads(self.connection.recv_bytes())
                if message["do"] == "exit":
                    break
                if "seconds" in message:
                    self._open(message["seconds"])
                self.commands.put(message)
        if self.closing:
            time.sleep(_CLOSE_TIMEOUT)  # closing needs the other ranks, which may be gone
        os._exit(3)

    def _open(self, seconds: float) -> None:
        with self.lock:
            self.command_open, self.stacks_at = True, time.monotonic() + _STACKS_AT * seconds
            self._set_watchdog()

    def _beat(self) -> None:
        with self.lock:
            if self.command_open:
                self._write(event="beat", batch=self.batch)
                self._set_watchdog()

    def _set_watchdog(self) -> None:
        remaining, silence = self.stacks_at - time.monotonic(), self.launch.heartbeat_timeout
        if remaining > 0:
            faulthandler.dump_traceback_later(min(remaining, _STACKS_AT * silence) if silence else remaining)

    def send(self, **message: Any) -> None:
        """Send a message, which ends an open command."""
        with self.lock:
            self.command_open = False
            faulthandler.cancel_dump_traceback_later()
            self._write(**message)

    def _write(self, **message: Any) -> None:
        self.connection.send_bytes(json.dumps(message).encode())
