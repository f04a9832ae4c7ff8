"""Polling: message progress, deadline, and sleep instead of spin, on a clock that a test advances."""

from __future__ import annotations

import pytest

from suite.comm.p2p import polling
from suite.comm.p2p.polling import sleep_until, wait_until


class FakeClock:
    """perf_counter, sleep and sched_yield on a clock that advances by 10 us per reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        self.yields: list[float] = []
        self.sleeps: list[tuple[float, float]] = []  # start and end
        monkeypatch.setattr(polling.time, "perf_counter", self.perf_counter)
        monkeypatch.setattr(polling.time, "sleep", self.sleep)
        monkeypatch.setattr(polling.os, "sched_yield", lambda: self.yields.append(self.time))

    def perf_counter(self) -> float:
        self.time += 1e-5
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append((self.time, self.time + seconds))
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


def test_wait_until_spins_then_yields_then_sleeps_until_the_timeout(clock: FakeClock) -> None:
    timeout = polling.YIELD_TIME + 1e-3
    assert wait_until(lambda: False, lambda: None, timeout=timeout) is False
    assert timeout <= clock.time < timeout + 2 * polling.SLEEP_INTERVAL
    assert polling.SPIN_TIME < clock.yields[0] < polling.SPIN_TIME + 3e-5
    assert polling.YIELD_TIME - 3e-5 < clock.yields[-1] < clock.sleeps[0][0] < polling.YIELD_TIME + 3e-5
    assert [end - start for start, end in clock.sleeps] == pytest.approx([polling.SLEEP_INTERVAL] * len(clock.sleeps))


def test_sleep_until_polls_without_sleep_before_its_end(clock: FakeClock) -> None:
    progress: list[float] = []
    sleep_until(3.5e-3, lambda: progress.append(clock.time))
    assert len(clock.sleeps) == 4
    assert len(progress) >= 4
    last_end = clock.sleeps[-1][1]
    assert last_end == pytest.approx(3.5e-3 - polling.WAKE_MARGIN, abs=5e-5)
    assert last_end < clock.yields[0] <= clock.yields[-1] < 3.5e-3 <= clock.time < 3.6e-3
    sleep_until(clock.time - 1.0, lambda: pytest.fail("there is nothing to wait for"))
