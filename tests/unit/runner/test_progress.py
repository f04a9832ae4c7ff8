"""Progress line: remaining time, and log files."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from suite.runner.progress import Progress


def progress_of(expected: float, stream: io.StringIO | None = None) -> tuple[Progress, SimpleNamespace, io.StringIO]:
    clock, stream = SimpleNamespace(now=1000.0), stream or io.StringIO()
    return Progress(expected, stream, lambda: clock.now), clock, stream


def test_remaining_time_follows_the_pace() -> None:
    for done, spent, later, remaining in (
        (0, 0, 30, 70.0),
        (45, 45, 0, 55.0),  # as expected
        (45, 105, 0, 110.0),  # a pace of 120 to 60 for the last 55
        (45, 105, 10, 100.0),
        (45, 105, 200, 0.0),
        (15, 0, 0, 42.5),  # 15 to 30 for the last 85
        (100, 500, 0, 0.0),
        (120, 500, 0, 0.0),  # more than expected is done
    ):
        progress, clock, _ = progress_of(100)
        clock.now += spent
        progress.advance(done / 2)
        progress.advance(done / 2)
        clock.now += later
        assert progress.remaining == pytest.approx(remaining, rel=1e-12), (done, spent)
    assert progress_of(0)[0].remaining == 1.0, "at least a second is expected"
