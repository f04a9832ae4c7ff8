"""File locks: one holder at a time, released however the holder ends."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from suite.runner.locking import hold_locks
from tests.support.waiting import patience

HOLDER = """
import sys, time
from pathlib import Path
from suite.runner.locking import hold_locks
with hold_locks(Path(sys.argv[1]), ["a", "b"], print):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_threads_hold_a_shared_lock_one_at_a_time(tmp_path: Path) -> None:
    running, highest = [0], [0]

    def work(names: list[str]) -> None:
        for _ in range(10):
            with hold_locks(tmp_path, names, lambda _: None):
                running[0] += 1
                highest[0] = max(highest[0], running[0])
                time.sleep(0.001)  # another thread may run meanwhile
                running[0] -= 1

    with ThreadPoolExecutor(3) as pool:  # different orders: no two wait for each other
        list(pool.map(work, [["a", "b"], ["b", "a"], ["b", "c", "a"]], timeout=patience(20)))
    assert highest == [1]
    assert not list(tmp_path.iterdir())


def test_killed_holder_is_named_and_releases_its_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    reports: list[str] = []

    def kill_holder(line: str) -> None:
        reports.append(line)
        holder.kill()

    with hold_locks(tmp_path, ["b"], kill_holder):
        pass
    assert f"process {holder.pid} on " in reports[0]
    holder.wait()
