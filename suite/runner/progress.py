"""Progress line with the remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TextIO

from suite.core.units import seconds

_LOG_INTERVAL = 15.0  # seconds between lines in a file, where a line cannot be rewritten
_PRIOR = 15.0  # seconds of work at the expected pace, which count like finished work


class Progress:
    """Progress line with the remaining time: the expected seconds, corrected by the pace so far."""

    def __init__(
        self, expected: float, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.expected, self.stream, self.clock = max(expected, 1.0), stream or sys.stderr, clock
        self.done = 0.0
        self.begin = self.advanced = clock()
        self.shown_at = -_LOG_INTERVAL
        self.width = 0
        self.text = ""
        self.lock = Lock()

    @property
    def remaining(self) -> float:
        """Remaining seconds: the unfinished work at the pace of the finished work, less the time since then."""
        pace = (self.advanced - self.begin + _PRIOR) / (self.done + _PRIOR)
        return max(0.0, (self.expected - self.done) * pace - (self.clock() - self.advanced))

    def advance(self, work: float) -> None:
        """Add `work` of the expected seconds to the finished part."""
        self.done += work
        self.advanced = self.clock()

    def skip(self, work: float) -> None:
        """Leave out `work` of the expected seconds, as its records exist."""
        self.expected -= work

    def show(self, text: str) -> None:
        """Show `text` with the remaining time, in place of the previous line of a terminal."""
        with self.lock:
            self.text = text
            self._draw()

    @contextmanager
    def ticking(self, every: float = 1.0) -> Iterator[None]:
        """Show the line again every so many seconds while the block runs."""
        ended = Event()

        def tick() -> None:
            while not ended.wait(every):
                with self.lock:
                    if self.text:
                        self._draw()

        thread = Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _draw(self) -> None:
        line = f"{self.text} · {seconds(self.remaining)} left"
        if self.stream.isatty():
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        elif self.clock() - self.begin - self.shown_at >= _LOG_INTERVAL:
            self.shown_at = self.clock() - self.begin
            self.stream.write(line + "\n")
        self.stream.flush()

    def print_line(self, text: str) -> None:
        """Print a line that later progress does not replace."""
        with self.lock:
            lead = "\r" if self.stream.isatty() else ""
            self.stream.write(lead + text.ljust(self.width if lead else 0) + "\n")
            self.width, self.text = 0, ""
            self.stream.flush()
