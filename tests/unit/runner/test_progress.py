"""Progress line: remaining time, and log files."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from suite.runner.progress import Progress


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_of(expected: float, stream: io.StringIO | None = None) -> tuple[Progress, SimpleNamespace, io.StringIO]:
    clock, stream = SimpleNamespace(now=1000.0), stream or io.StringIO()
    return Progress(expected, stream, lambda: clock.now), clock, stream


def test_remaining_time_follows_the_pace() -> None:
    for done, spent, remaining in (
        (0, 30, 100.0),
        (50, 50, 50.0),  # as expected
        (50, 100, 75.0),  # half done, twice as slow: the pace is trusted by half, 1.5
        (50, 25, 37.5),  # 0.75
        (80, 160, 36.0),  # 0.2 + 0.8 * 2 = 1.8 for the last 20
        (10, 40, 117.0),  # 0.9 + 0.1 * 4 = 1.3 for 90
        (100, 500, 0.0),
        (120, 500, 0.0),  # more than expected is done
    ):
        progress, clock, _ = progress_of(100)
        clock.now += spent
        progress.advance(done / 2)
        progress.advance(done / 2)
        assert progress.remaining == pytest.approx(remaining, rel=1e-12), (done, spent)
    assert progress_of(0)[0].remaining == 1.0, "at least a second is expected"


def test_terminal_line_is_rewritten() -> None:
    progress, clock, stream = progress_of(90, Screen())
    progress.show("a long title")
    clock.now += 0.1
    progress.advance(45)
    progress.show("short")
    first = "a long title · 1 min 30 s left"
    second = stream.getvalue().split("\r")[2]
    assert stream.getvalue() == f"\r{first}\r{second}"
    assert second.rstrip() == "short · 23 s left"
    assert len(second) == len(first)  # nothing of the longer line stays
    progress.print_line("done")
    last = stream.getvalue().split("\r")[3]
    assert last == "done".ljust(len("short · 23 s left")) + "\n"
    progress.show("next")
    assert stream.getvalue().endswith("\rnext · 23 s left")


def test_log_file_gets_few_lines() -> None:
    progress, clock, stream = progress_of(100)
    for _ in range(46):
        progress.show("step")
        clock.now += 1
    assert stream.getvalue() == "step · 1 min 40 s left\n" * 4  # at 0, 15, 30, 45 s
    progress.print_line("done")
    assert stream.getvalue().endswith("left\ndone\n")
    assert "\r" not in stream.getvalue()
