"""Progress line with the remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from suite.core.units import seconds

_LOG_INTERVAL = 15.0  # seconds between lines in a file, where a line cannot be rewritten


class Progress:
    """Progress line with the remaining time: the expected seconds, corrected by the pace so far."""

    def __init__(
        self, expected: float, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.expected, self.stream, self.clock = max(expected, 1.0), stream or sys.stderr, clock
        self.done = 0.0
        self.begin = clock()
        self.shown_at = -_LOG_INTERVAL
        self.width = 0

    @property
    def remaining(self) -> float:
        """Remaining seconds at the pace so far. The pace counts more as more work is done."""
        spent = self.clock() - self.begin
        share = min(self.done / self.expected, 1.0)
        pace = 1.0 if self.done <= 0 else (1 - share) + share * spent / self.done
        return max(0.0, (self.expected - self.done) * pace)

    def advance(self, work: float) -> None:
        """Add `work` of the expected seconds to the finished part."""
        self.done += work

    def show(self, text: str) -> None:
        """Show `text` with the remaining time, in place of the previous line of a terminal."""
        line = f"{text} · {seconds(self.remaining)} left"
        if self.stream.isatty():
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        elif self.clock() - self.begin - self.shown_at >= _LOG_INTERVAL:
            self.shown_at = self.clock() - self.begin
            self.stream.write(line + "\n")
        self.stream.flush()

    def print_line(self, text: str) -> None:
        """Print a line that later progress does not replace."""
        lead = "\r" if self.stream.isatty() else ""
        self.stream.write(lead + text.ljust(self.width if lead else 0) + "\n")
        self.width = 0
        self.stream.flush()
