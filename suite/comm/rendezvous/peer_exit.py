"""Notes of ranks that wait for one another, and of ranks that have left.

A rank that closes an engine, or whose process ends, writes a note into the store of the ranks: how many calls it has
made on that engine. A rank that waits longer than `polling.CHECK_INTERVAL` seconds reads these notes, and raises where
another rank has made fewer calls, because the messages that it waits for will never be sent. It also writes a note of
its own call, and compares it with that of the next rank: two ranks that wait in different calls, or with batches of
other sizes, may wait without end.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from typing import Any, NamedTuple, TypedDict

from suite.comm.p2p.polling import add_wait_check, remove_wait_check
from suite.core.errors import InvalidRequest, RankError

EXIT_TIMEOUT = 5.0  # seconds that the end of a script waits for the other ranks to end
_ENDED_LIST = "ranks that have ended"
_RULE = "every rank must make the same calls on an engine, and train the same number of batches"
_POLL_INTERVAL = 0.005  # seconds between polls of the number of ended ranks


def exception_raised() -> bool:
    """Whether an exception other than SystemExit ends this process."""
    return getattr(sys, "last_value", None) is not None


class NoteBoard:
    """Notes of all ranks in a torch.distributed store: lists, and single ones that a rank replaces."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def write(self, name: str, note: str) -> None:
        """Append a note to the list `name`."""
        number = self.store.add(f"suite/{name}", 1)
        self.store.set(f"suite/{name}/{number}", note)

    def read(self, name: str, start: int) -> list[str]:
        """The notes of the list `name` from index `start` on."""
        notes: list[str] = []
        for number in range(start + 1, self.store.add(f"suite/{name}", 0) + 1):
            key = f"suite/{name}/{number}"
            if not self.store.check([key]):  # its writer is between its two requests
                break
            notes.append(self.store.get(key).decode())
        return notes

    def replace(self, name: str, note: str) -> None:
        self.store.set(f"suite/{name}", note)

    def find(self, name: str) -> str | None:
        key = f"suite/{name}"
        return self.store.get(key).decode() if self.store.check([key]) else None


class DepartureNote(TypedDict):
    """The departure of a rank from an engine. calls: number of calls that it has finished"""

    rank: int
    calls: int
    text: str


class Call(NamedTuple):
    """A call of one rank on one engine. Each batch is a call.

    Attributes:
        number: Number of calls so far, this one included.
        clause: Description of the call, for error messages.
        batches: Number of batches so far, this one included.
        code: Number that is equal on ranks whose calls agree.
    """

    number: int
    clause: str
    batches: int
    code: int


class EngineCalls:
    """The calls of one rank on one engine.

    Attributes:
        call: The last call.
        in_call: Whether it is running.
        notes: Notes of other ranks.
    """

    def __init__(self, name: str) -> None:
        self.name, self.call, self.in_call = name, Call(0, "", 0, 0), False
        self.notes: list[DepartureNote] = []


class Departures:
    """The notes of one rank.

    Args:
        store: Where ranks leave notes.
        at_exit: Whether the process ends with the rank, which then writes its notes at exit. Rank 0 often serves the
            store, and waits up to EXIT_TIMEOUT seconds for the others to read their notes.
    """

    def __init__(self, rank: int, size: int, store: Any, *, at_exit: bool = False) -> None:
        self.rank, self.size, self.board, self.at_exit = rank, size, NoteBoard(store), at_exit
        self.engines = 0
        self.open: list[EngineCalls] = []
        if at_exit:
            add_wait_check(self.check)

    def register_engine(self) -> EngineCalls:
        """The call counter of a new engine. Every rank creates its engines in the same order."""
        self.engines += 1
        calls = EngineCalls(f"engine {self.engines}")
        self.open.append(calls)
        if self.at_exit:  # exit handlers run last in, first out: the notes must precede the closing of channels
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
        return calls

    def close(self, calls: EngineCalls, event: str = "closed its engine") -> None:
        """Write the note of one engine, once."""
        if calls in self.open:
            self.open.remove(calls)
            call, plural = calls.call, "es" * (calls.call.batches != 1)
            when = f"within {call.clause}" if calls.in_call else f"after {call.batches} batch{plural}"
            note = {"rank": self.rank, "calls": call.number - calls.in_call, "text": f"has {event} {when}"}
            self.board.write(calls.name, json.dumps(note))

    def leave(self, event: str = "ended") -> None:
        """Write the notes of all open engines."""
        for calls in list(self.open):
            self.close(calls, event)

    def check(self) -> None:
        """Raise the error that the notes show: see the module."""
        for calls in self.open:
            try:
                self._check(calls)
            except RuntimeError as error:  # torch's DistError: no connection
                raise RankError(
                    f"the process that serves the store of all ranks has ended; this rank is at {calls.call.clause}: "
                    f"{_RULE}"
                ) from error

    def _check(self, calls: EngineCalls) -> None:
        own = calls.call
        self.board.replace(f"{calls.name}, rank {self.rank}", json.dumps([own.number, own.code, own.clause]))
        following = (self.rank + 1) % self.size  # where two ranks differ, two neighbours do
        number, code, clause = json.loads(self.board.find(f"{calls.name}, rank {following}") or "[-1, 0, 0]")
        if number == own.number and code != own.code:
            other = f"at {clause} with other sizes or types" if clause == own.clause else f"at {clause}"
            raise InvalidRequest(f"rank {following} is {other}, this rank is at {own.clause}", rule=_RULE)
        calls.notes += map(json.loads, self.board.read(calls.name, len(calls.notes)))
        fewer = [note for note in calls.notes if note["calls"] < own.number]
        if fewer:
            first = min(fewer, key=lambda note: note["calls"])  # of several the one that left first
            raise RankError(f"rank {first['rank']} {first['text']}; this rank is at {own.clause}: {_RULE}")

    def stop(self) -> None:
        """Stop checking peers and leaving notes."""
        atexit.unregister(self._at_exit)
        remove_wait_check(self.check)
        self.open.clear()

    def _at_exit(self) -> None:
        remove_wait_check(self.check)
        try:
            self.leave("failed" if exception_raised() else "ended")
            self.board.write(_ENDED_LIST, "")
            if self.rank == 0 and not exception_raised():
                self._wait_for_others()
        except RuntimeError:  # the process that serves the store has ended
            return

    def _wait_for_others(self) -> None:
        end = time.monotonic() + EXIT_TIMEOUT
        ended_count = 0
        while ended_count < self.size and time.monotonic() < end:
            ended_count += len(self.board.read(_ENDED_LIST, ended_count))
            time.sleep(_POLL_INTERVAL * (ended_count < self.size))
