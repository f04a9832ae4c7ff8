"""Command of `make soak`: kill sweeps at random moments and run random configurations.

Exits with 1 after a fault.

The seed is printed, and makes the same kills and configs again; moments are as exact as a machine's scheduler.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from tests.soak import composed, kills, real

WORKERS = 2  # as many as a small machine has cores


def side_by_side(work: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> None:
    """Each part in a thread of its own: all of them wait for other processes."""
    threads = [Thread(target=work, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def killed(count: int, seed: int, folder: Path, seconds: float) -> bool:
    begin = time.monotonic()
    tally = kills.Tally(until=begin + seconds)
    folder.mkdir()
    side_by_side(kills.many, [(count, seed, folder, tally, worker, WORKERS) for worker in range(WORKERS)])
    print(kills.report(tally, time.monotonic() - begin), flush=True)
    return not tally.faults


def tried(count: int, seed: int, folder: Path, seconds: float) -> bool:
    begin = time.monotonic()
    jobs = [(len(range(each, count, WORKERS)), seed + each, f"{folder}-{each}", seconds) for each in range(WORKERS)]
    with get_context("spawn").Pool(WORKERS) as pool:
        tally = pool.map(composed.part, jobs, chunksize=1)
    for one in tally[1:]:
        tally[0].add(one)
    print(f"random configs without ranks, {time.monotonic() - begin:.0f} s\n{composed.report(tally[0])}", flush=True)
    return not tally[0].faults


def ran(count: int, seed: int, folder: Path, seconds: float) -> bool:
    ended, begin = real.Ended(), time.monotonic()
    parts = [(list(range(each, count, WORKERS)), seed, folder, ended, begin + seconds) for each in range(WORKERS)]
    side_by_side(real.many, parts)
    print(f"random configs of real ranks, {time.monotonic() - begin:.0f} s\n{real.report(ended)}", flush=True)
    return not ended.faults


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Kills sweeps and tries random configs.")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 10**9 % 10**6, help="of moments and configs")
    for name, description in (("kills", "of sweeps"), ("configs", "without ranks"), ("real", "configs of real ranks")):
        parser.add_argument(f"--{name}", type=int, default=0, help=description)
    parser.add_argument("--minutes", type=float, default=math.inf, help="shared by the three; nothing begins after it")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}: make soak SEED={options.seed}", flush=True)
    works = ((tried, options.configs, "configs"), (ran, options.real, "real"), (killed, options.kills, "kills"))
    wanted = [(work, count, name) for work, count, name in works if count]
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as place:
        seconds = 60 * options.minutes / max(1, len(wanted))
        good = [work(count, options.seed, Path(place) / name, seconds) for work, count, name in wanted]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
