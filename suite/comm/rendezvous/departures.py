"""Departures of ranks from the calls that all ranks make on an engine.

A rank that closes an engine, or whose process ends, leaves a note in the store where the ranks met: how many calls it
has made on that engine. A rank that waits for longer than `waiting.LOOK` seconds reads the notes. It raises where
another rank has made fewer calls, because the messages for which it waits will never be sent."""

from __future__ import annotations

import atexit
import json
import time
from typing import Any, Protocol, TypedDict

from suite.comm.p2p.polling import unwatch, watch
from suite.comm.rendezvous.process_exit import LEAVE, raised
from suite.core.errors import RankError

_ENDED = "ranks that have ended"
_RULE = "every rank must make the same calls on an engine, and train the same number of batches"
_POLL = 0.005  # seconds between two looks at the number of ranks that have ended


class Board(Protocol):
    """Lists of notes that all ranks read and write."""

    def write(self, name: str, note: str) -> None: ...

    def read(self, name: str, known: int) -> list[str]:
        """The notes of a list, without the first `known`."""


class StoreBoard:
    """Notes in a torch.distributed store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def write(self, name: str, note: str) -> None:
        number = self.store.add(f"suite/{name}", 1)
        self.store.set(f"suite/{name}/{number}", note)

    def read(self, name: str, known: int) -> list[str]:
        notes: list[str] = []
        for number in range(known + 1, self.store.add(f"suite/{name}", 0) + 1):
            key = f"suite/{name}/{number}"
            if not self.store.check([key]):  # its writer is between two requests
                break
            notes.append(self.store.get(key).decode())
        return notes


class Note(TypedDict):
    """A rank's last words about an engine. calls: that it has finished"""

    rank: int
    calls: int
    text: str


class Calls:
    """The calls of one rank on one engine. A batch is a call of its own.

    Attributes:
        begun: Calls so far.
        within: Whether the last one is under way.
        batches: Trained so far, with the one under way.
        at: The last call, for a message.
    """

    def __init__(self, name: str) -> None:
        self.name, self.begun, self.within, self.batches, self.at = name, 0, False, 0, ""
        self.notes: list[Note] = []  # of other ranks

    def begin(self, at: str, batches: int) -> None:
        self.begun, self.within, self.at, self.batches = self.begun + 1, True, at, batches

    def end(self) -> None:
        self.within = False


class Departures:
    """The notes of one rank.

    ends: whether the process ends with the rank, which then leaves its notes at exit. Rank 0 often serves the store,
        and gives the others LEAVE seconds to read the notes
    """

    def __init__(self, rank: int, size: int, board: Board, *, ends: bool = False) -> None:
        self.rank, self.size, self.board, self.ends = rank, size, board, ends
        self.engines = 0
        self.open: list[Calls] = []
        if ends:
            watch(self.look)

    def engine(self) -> Calls:
        """The calls on one more engine. Every rank creates its engines in the same order."""
        self.engines += 1
        calls = Calls(f"engine {self.engines}")
        self.open.append(calls)
        if self.ends:  # the last function that is registered is the first that runs: before channels wait for others
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
        return calls

    def close(self, calls: Calls, how: str = "closed its engine") -> None:
        """Leave the note of one engine; once is enough."""
        if calls in self.open:
            self.open.remove(calls)
            where = (
                f"within {calls.at}" if calls.within else f"after {calls.batches} batch{'es' * (calls.batches != 1)}"
            )
            note = {"rank": self.rank, "calls": calls.begun - calls.within, "text": f"has {how} {where}"}
            self.board.write(calls.name, json.dumps(note))

    def leave(self, how: str = "ended") -> None:
        for calls in list(self.open):
            self.close(calls, how)

    def look(self) -> None:
        """Raises RankError where another rank has left an engine after fewer calls than this rank has begun."""
        for calls in self.open:
            try:
                calls.notes += map(json.loads, self.board.read(calls.name, len(calls.notes)))
            except RuntimeError as error:  # torch's DistError: no connection
                text = f"the process that serves the store of all ranks has ended; this rank is at {calls.at}: {_RULE}"
                raise RankError(text) from error
            fewer = [note for note in calls.notes if note["calls"] < calls.begun]
            if fewer:
                first = min(fewer, key=lambda note: (note["calls"], note["rank"]))
                raise RankError(f"rank {first['rank']} {first['text']}; this rank is at {calls.at}: {_RULE}")

    def stop(self) -> None:
        """The world is closed."""
        atexit.unregister(self._at_exit)
        unwatch(self.look)
        self.open.clear()

    def _at_exit(self) -> None:
        unwatch(self.look)
        try:
            self.leave("failed" if raised() else "ended")
            self.board.write(_ENDED, "")
            if self.rank == 0 and not raised():
                self._serve()
        except RuntimeError:  # the store is gone: its server has ended
            return

    def _serve(self) -> None:
        end = time.monotonic() + LEAVE
        ended_count = 0
        while ended_count < self.size and time.monotonic() < end:
            ended_count += len(self.board.read(_ENDED, ended_count))
            time.sleep(_POLL * (ended_count < self.size))
