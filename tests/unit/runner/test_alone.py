"""Locks: one holder at a time, released however the holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from suite.runner.locking import alone

HOLDS = """
import sys, time
from pathlib import Path
from suite.runner.locking import alone
with alone(Path(sys.argv[1]), ["a", "b"], print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_nobody_waits_where_nobody_holds_and_nothing_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with alone(tmp_path / "locks", ["b", "a", "a"], told.append):
            assert sorted(path.name for path in (tmp_path / "locks").iterdir()) == ["a.lock", "b.lock"]
    assert not told
    assert not list((tmp_path / "locks").iterdir())


def test_one_at_a_time_whatever_the_order_of_the_names(tmp_path: Path) -> None:
    inside = highest = 0
    guard = threading.Lock()

    def work(names: list[str]) -> None:
        nonlocal inside, highest
        for _ in range(20):
            with alone(tmp_path, names, lambda _: None):
                with guard:
                    inside += 1
                    highest = max(highest, inside)
                time.sleep(0.001)
                with guard:
                    inside -= 1

    names = [["a", "b"], ["b", "a"], ["b", "c", "a"]]
    threads = [threading.Thread(target=work, args=(some,), daemon=True) for some in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert highest == 1
    assert not list(tmp_path.iterdir())


def test_who_holds_it_is_said_and_its_death_lets_go(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    told: list[str] = []

    def waiting(what: str) -> None:
        told.append(what)
        holder.kill()

    with alone(tmp_path, ["b"], waiting):
        pass
    assert f"waiting for process {holder.pid} on " in told[0]
    holder.wait()


def test_a_lock_on_a_file_that_its_last_holder_took_away_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would lock a new file of that name."""
    flock, calls = fcntl.flock, 0

    def late(file: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / "a.lock").unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(tmp_path, ["a"], lambda _: None), open(tmp_path / "a.lock") as other, pytest.raises(BlockingIOError):
        flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    told: list[str] = []
    with alone(tmp_path, ["a"], told.append):
        pass
    assert "no locks" in told[0]
