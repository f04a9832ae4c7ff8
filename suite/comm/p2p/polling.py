"""Polling with back-off: spin briefly, yield the core, then sleep between polls.

Each poll also drives message progress. Next to a foreign busy process, a rank that only spins loses whole time
slices per message. A rank that sleeps 50 us returns after 130 us (timer slack, and the exit of a virtual machine
from a halted core), which is longer than most messages take. Yielding the core costs half a microsecond on an idle
machine, and lets other processes run on a busy one."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Generator

from suite.core.protocols import Handle, Transport, World

_PR_SET_TIMERSLACK = 29
_TIMER_SLACK = 1000  # ns: Linux lets a sleep overrun by 50 us unless told otherwise, as long as the sleep itself
SPIN = 50e-6  # seconds of looking only
OFFER = 20e-3  # seconds after which a rank sleeps between looks: it waits for a batch, not for a message
NAP = 50e-6
LOOK = 1.0  # seconds of waiting between looks at whether other ranks have ended
SLICE = 1e-3  # seconds between looks at messages while a pause lasts
EARLY = 150e-6  # seconds before its end at which a pause sleeps no more: a sleep is late by up to that


def short_sleeps() -> None:
    """Of this thread: sleeps that are short end in time."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK, 0, 0, 0)


def pause(end: float, progress: Callable[[], None]) -> None:
    """Sleep until perf_counter reaches `end`, and call `progress` in between, as messages move while a device is
    busy.
    """
    while (remaining := end - time.perf_counter()) > 0:
        progress()
        if remaining > EARLY:
            time.sleep(min(SLICE, remaining - EARLY))
        else:
            os.sched_yield()


_watched: list[Callable[[], None]] = []


def watch(look: Callable[[], None]) -> None:
    """From now on every long wait of this process calls `look`, which raises where the wait can have no end."""
    _watched.append(look)


def unwatch(look: Callable[[], None]) -> None:
    if look in _watched:
        _watched.remove(look)


def look_around() -> None:
    """Raises RankError where a rank has ended that others still need."""
    for look in tuple(_watched):
        look()


def until(done: Callable[[], bool], progress: Callable[[], None], timeout: float | None = None) -> bool:
    """Look at `done` until it is true, calling `progress` between looks; False if `timeout` seconds pass first.

    Raises RankError after LOOK seconds or more, where a rank has ended that others still need."""
    start, due = time.perf_counter(), LOOK
    while not done():
        progress()
        waited = time.perf_counter() - start
        if timeout is not None and waited > timeout:
            return False
        if waited > OFFER:
            if waited > due:
                look_around()
                due = waited + LOOK
            time.sleep(NAP)
        elif waited > SPIN:
            os.sched_yield()
    return True


def ended(handle: Handle, transport: Transport) -> Generator[None, None, None]:
    """Until a collective has ended. Yields nothing, but where ranks take turns (comm.coroutine) whenever the others
    must go on first."""
    if not transport.turns:
        until(handle.done, transport.progress)
    while not handle.done():
        yield None


def together(world: World, number: float, transport: Transport, op: str = "sum") -> Generator[None, None, float]:
    """The sum (or max) of one number per rank, the same on every rank. Yields as `ended` does."""
    if not transport.turns:
        return world.all_reduce_scalar(number, op, transport.progress)
    reduced: float = yield from world.together(number, op)  # type: ignore[attr-defined]
    return reduced
