"""Progress line with the remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from suite.core.units import seconds

_PLAIN_INTERVAL = 15.0  # seconds between lines where the line cannot be rewritten (a log file)


class Progress:
    """Time left from expected seconds of work, corrected by how long the finished part really took."""

    def __init__(
        self, expected: float, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.expected, self.stream, self.clock = max(expected, 1.0), stream or sys.stderr, clock
        self.done = 0.0
        self.begin = clock()
        self.shown_at = -_PLAIN_INTERVAL
        self.width = 0

    @property
    def left(self) -> float:
        """Remaining seconds of the expected work, at the pace so far, which is trusted more as it grows."""
        spent = self.clock() - self.begin
        share = min(self.done / self.expected, 1.0)
        pace = 1.0 if self.done <= 0 else (1 - share) + share * spent / self.done
        return max(0.0, (self.expected - self.done) * pace)

    def advance(self, work: float) -> None:
        """`work` of the expected seconds is behind us."""
        self.done += work

    def show(self, text: str) -> None:
        line = f"{text} · {seconds(self.left)} left"
        if self.stream.isatty():
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        elif self.clock() - self.begin - self.shown_at >= _PLAIN_INTERVAL:
            self.shown_at = self.clock() - self.begin
            self.stream.write(line + "\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        lead = "\r" if self.stream.isatty() else ""
        self.stream.write(lead + text.ljust(self.width if lead else 0) + "\n")
        self.width = 0
        self.stream.flush()
