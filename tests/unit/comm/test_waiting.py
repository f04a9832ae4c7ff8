"""Polling: message progress, deadline, and sleep instead of spin."""

from __future__ import annotations

import time

import pytest

from suite.comm.p2p import polling
from suite.comm.p2p.polling import pause, until


class Counted:
    def __init__(self, after: int) -> None:
        self.after, self.looks, self.progressed = after, 0, 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > self.after

    def progress(self) -> None:
        self.progressed += 1


def test_what_is_done_is_not_waited_for() -> None:
    counted = Counted(0)
    assert until(counted.done, counted.progress)
    assert until(lambda: True, counted.progress, timeout=0)
    assert counted.progressed == 0


def test_progress_is_called_between_looks() -> None:
    counted = Counted(7)
    assert until(counted.done, counted.progress)
    assert (counted.looks, counted.progressed) == (8, 7)


def test_progress_may_be_what_makes_it_done() -> None:
    arrived: list[int] = []
    assert until(lambda: len(arrived) == 3, lambda: arrived.append(0), timeout=5)
    assert len(arrived) == 3


def test_a_timeout_ends_the_wait() -> None:
    counted = Counted(10**9)
    start = time.perf_counter()
    assert until(counted.done, counted.progress, timeout=0.03) is False
    assert time.perf_counter() - start >= 0.03
    assert counted.progressed > 0


def test_progress_raises_through() -> None:
    def lost() -> None:
        raise ConnectionError("a neighbour is gone")

    with pytest.raises(ConnectionError):
        until(lambda: False, lost)


def test_it_spins_briefly_then_offers_its_core_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, offered, slept = [0.0], [], []

    def look() -> float:
        clock[0] += 1e-5
        return clock[0]

    def sleep(seconds: float) -> None:
        slept.append((clock[0], seconds))
        clock[0] += seconds

    monkeypatch.setattr(polling.time, "perf_counter", look)
    monkeypatch.setattr(polling.time, "sleep", sleep)
    monkeypatch.setattr(polling.os, "sched_yield", lambda: offered.append(clock[0]))
    assert until(lambda: False, lambda: None, timeout=polling.OFFER + 1e-3) is False
    assert polling.SPIN < offered[0] < polling.SPIN + 3e-5
    assert polling.OFFER - 3e-5 < offered[-1] < slept[0][0] < polling.OFFER + 3e-5
    assert {seconds for _, seconds in slept} == {polling.NAP}


def test_a_pause_lasts_until_its_end_and_moves_messages() -> None:
    moved: list[float] = []
    begin = time.perf_counter()
    pause(begin + 0.02, lambda: moved.append(time.perf_counter() - begin))
    assert 0.02 <= time.perf_counter() - begin < 0.03
    assert len(moved) >= 10
    assert moved[0] < 0.005


def test_a_pause_sleeps_but_for_its_last_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own: sleeps never reach the end, and what is left of it is looked at without one."""
    clock, slept, offered = [0.0], [], []

    def look() -> float:
        clock[0] += 1e-5
        return clock[0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        slept.append(clock[0])

    monkeypatch.setattr(polling.time, "perf_counter", look)
    monkeypatch.setattr(polling.time, "sleep", sleep)
    monkeypatch.setattr(polling.os, "sched_yield", lambda: offered.append(clock[0]))
    pause(3.5e-3, lambda: None)
    assert len(slept) == 4
    assert slept[-1] == pytest.approx(3.5e-3 - polling.EARLY, abs=5e-5)
    assert slept[-1] < offered[0] <= offered[-1] < 3.5e-3 <= clock[0]


def test_a_pause_whose_end_has_passed_is_none() -> None:
    pause(time.perf_counter() - 1.0, lambda: pytest.fail("there is nothing to wait for"))
