"""Polling: message progress, deadline, and sleep instead of spin."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from suite.comm.p2p import polling
from suite.comm.p2p.polling import complete, sleep_until, wait_until


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


@pytest.mark.parametrize("polls", [0, 7])
def test_wait_until_calls_progress_between_polls(polls: int) -> None:
    calls: list[str] = []

    def done() -> bool:
        calls.append("done")
        return calls.count("done") > polls

    assert wait_until(done, lambda: calls.append("progress"))
    assert calls == ["done", "progress"] * polls + ["done"]


def test_wait_until_checks_done_before_a_timeout_of_zero() -> None:
    assert wait_until(lambda: True, lambda: pytest.fail("no progress is needed"), timeout=0)


def test_wait_until_returns_false_after_the_timeout() -> None:
    progress_calls: list[int] = []
    start = time.perf_counter()
    assert wait_until(lambda: False, lambda: progress_calls.append(0), timeout=0.03) is False
    assert time.perf_counter() - start >= 0.03
    assert progress_calls


def test_wait_until_passes_an_error_of_progress_on() -> None:
    def progress() -> None:
        raise ConnectionError("a neighbour has ended")

    with pytest.raises(ConnectionError):
        wait_until(lambda: False, progress)


def test_wait_until_spins_then_yields_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    assert wait_until(lambda: False, lambda: None, timeout=polling.YIELD_TIME + 1e-3) is False
    assert polling.SPIN_TIME < clock.yields[0] < polling.SPIN_TIME + 3e-5
    assert polling.YIELD_TIME - 3e-5 < clock.yields[-1] < clock.sleeps[0][0] < polling.YIELD_TIME + 3e-5
    assert [end - start for start, end in clock.sleeps] == pytest.approx([polling.SLEEP_INTERVAL] * len(clock.sleeps))


def test_sleep_until_ends_in_time_and_moves_messages() -> None:
    progress_times: list[float] = []
    begin = time.perf_counter()
    sleep_until(begin + 0.02, lambda: progress_times.append(time.perf_counter() - begin))
    assert 0.02 <= time.perf_counter() - begin < 0.03
    assert len(progress_times) >= 10
    assert progress_times[0] < 0.005


def test_sleep_until_polls_without_sleep_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(monkeypatch)
    sleep_until(3.5e-3, lambda: None)
    assert len(clock.sleeps) == 4
    last_end = clock.sleeps[-1][1]
    assert last_end == pytest.approx(3.5e-3 - polling.WAKE_MARGIN, abs=5e-5)
    assert last_end < clock.yields[0] <= clock.yields[-1] < 3.5e-3 <= clock.time


def test_sleep_until_returns_at_once_for_a_past_end() -> None:
    sleep_until(time.perf_counter() - 1.0, lambda: pytest.fail("there is nothing to wait for"))


@pytest.mark.parametrize(("threaded", "yields"), [(False, True), (True, False)])
def test_complete_leaves_the_core_to_threads_that_move_messages(
    monkeypatch: pytest.MonkeyPatch, threaded: bool, yields: bool
) -> None:
    clock = FakeClock(monkeypatch)
    handle: Any = SimpleNamespace(done=lambda: clock.time > 2e-3)
    transport: Any = SimpleNamespace(progress=lambda: None, threaded=threaded)
    assert complete(handle, transport)
    assert (bool(clock.yields), bool(clock.sleeps)) == (yields, not yields)
    never: Any = SimpleNamespace(done=lambda: False)
    assert not complete(never, transport, 1e-3)
