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
from typing import Any, NamedTuple

from suite.comm.p2p.polling import add_wait_check, remove_wait_check
from suite.core.errors import InvalidRequest, RankError

EXIT_TIMEOUT = 5.0  # seconds that the end of a script waits for the other ranks to end
_ENDED_LIST = "ranks that have ended"
_RULE = "every rank must make the same calls on an engine, and train the same number of batches"
_POLL_INTERVAL = 0.005  # seconds between polls of the number of ended ranks


def exception_raised() -> bool:
    """Whether an exception other than SystemExit ends this process."""
    return getattr(sys, "last_value", None) is not None


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
        notes: Departures of other ranks from the engine: rank, number of calls that it has finished, and a clause.
    """

    def __init__(self, name: str) -> None:
        self.name, self.call, self.in_call = name, Call(0, "", 0, 0), False
        self.notes: list[tuple[int, int, str]] = []


class Departures:
    """The notes of one rank.

    Args:
        store: A store of torch.distributed, where ranks leave notes.
        at_exit: Whether the process ends with the rank, which then writes its notes at exit. Rank 0 often serves the
            store, and waits up to EXIT_TIMEOUT seconds for the others to read their notes.
    """

    def __init__(self, rank: int, size: int, store: Any, *, at_exit: bool = False) -> None:
        self.rank, self.size, self.store, self.at_exit = rank, size, store, at_exit
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
            self._append(calls.name, json.dumps([self.rank, call.number - calls.in_call, f"has {event} {when}"]))

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
        self.store.set(f"suite/{calls.name}, rank {self.rank}", json.dumps([own.number, own.code, own.clause]))
        following = (self.rank + 1) % self.size  # where two ranks differ, two neighbours do
        key = f"suite/{calls.name}, rank {following}"
        number, code, clause = json.loads(self.store.get(key) if self.store.check([key]) else "[-1, 0, 0]")
        if number == own.number and code != own.code:
            other = f"at {clause} with other sizes or types" if clause == own.clause else f"at {clause}"
            raise InvalidRequest(f"rank {following} is {other}, this rank is at {own.clause}", rule=_RULE)
        calls.notes += map(json.loads, self._read(calls.name, len(calls.notes)))
        fewer = [note for note in calls.notes if note[1] < own.number]
        if fewer:
            rank, _, clause = min(fewer, key=lambda note: note[1])  # of several the one that left first
            raise RankError(f"rank {rank} {clause}; this rank is at {own.clause}: {_RULE}")

    def _append(self, name: str, note: str) -> None:
        """Append a note to the list `name` of all ranks."""
        number = self.store.add(f"suite/{name}", 1)
        self.store.set(f"suite/{name}/{number}", note)

    def _read(self, name: str, start: int) -> list[str]:
        """The notes of the list `name` from index `start` on."""
        notes: list[str] = []
        for number in range(start + 1, self.store.add(f"suite/{name}", 0) + 1):
            key = f"suite/{name}/{number}"
            if not self.store.check([key]):  # its writer is between its two requests
                break
            notes.append(self.store.get(key).decode())
        return notes

    def stop(self) -> None:
        """Stop checking peers and leaving notes."""
        atexit.unregister(self._at_exit)
        remove_wait_check(self.check)
        self.open.clear()

    def _at_exit(self) -> None:
        remove_wait_check(self.check)
        try:
            self.leave("failed" if exception_raised() else "ended")
            self._append(_ENDED_LIST, "")
            if self.rank == 0 and not exception_raised():
                self._wait_for_others()
        except RuntimeError:  # the process that serves the store has ended
            return

    def _wait_for_others(self) -> None:
        end = time.monotonic() + EXIT_TIMEOUT
        ended_count = 0
        while ended_count < self.size and time.monotonic() < end:
            ended_count += len(self._read(_ENDED_LIST, ended_count))
            time.sleep(_POLL_INTERVAL * (ended_count < self.size))
