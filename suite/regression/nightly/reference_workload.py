"""Reference workload that no commit changes, timed with every repeat.

It separates a slow machine from slow code. Two processes at once, as ranks are, each do what training is made of:
products of matrices, copies of memory, plain Python, and round trips between the two. It calls nothing of the suite,
and none of its sizes may change without a new VERSION, which nights tell and are not scaled across.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

VERSION = 1
_ROUNDS = 5
_PRODUCTS, _SIZE = 24, 256
_COPIES, _BYTES = 6, 16 << 20
_STEPS = 150_000
_TRIPS = 1500
_LIMIT = 120  # seconds: a machine that takes longer is stuck


def measured(tree: Path, python: str = sys.executable) -> dict[str, float]:
    """Seconds by part, in processes of their own; empty where it failed, and then nothing is scaled."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [python, "-m", "suite.regression.nightly.reference_workload"],
            cwd=tree,
            env={**environment, "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=True,
        )
        return {f"{part}/{VERSION}": float(value) for part, value in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError, TypeError):
        return {}


def timed(pipe: Connection, *, first: bool) -> dict[str, float]:
    """One side's medians over the rounds. Both sides go through the parts together."""
    import numpy as np

    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((_SIZE, _SIZE), dtype=np.float32) for _ in range(2))
    c = np.empty_like(a)
    there, back = np.zeros(_BYTES, np.uint8), np.ones(_BYTES, np.uint8)

    def products() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(a, b, out=c)

    def copies() -> None:
        for _ in range(_COPIES):
            np.copyto(there, back)

    def steps() -> None:
        counts: dict[int, int] = {}
        for number in range(_STEPS):
            counts[number % 97] = counts.get(number % 97, 0) + number

    def trips() -> None:
        for _ in range(_TRIPS):
            if first:
                pipe.send_bytes(b"x")
                pipe.recv_bytes()
            else:
                pipe.recv_bytes()
                pipe.send_bytes(b"x")

    parts: Mapping[str, Callable[[], None]] = {"products": products, "copies": copies, "steps": steps, "trips": trips}
    took: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():
        part()  # pages and caches
    for _ in range(_ROUNDS):
        for name, part in parts.items():
            begin = perf_counter()
            part()
            took[name].append(perf_counter() - begin)
    return {name: median(times) for name, times in took.items()}


def _partner(pipe: Any) -> None:
    pipe.send(timed(pipe, first=False))


def main() -> None:
    """Writes the slower side's seconds: a batch waits for its slowest rank."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    partner = context.Process(target=_partner, args=(theirs,), daemon=True)
    partner.start()
    mine = timed(ours, first=True)
    other = ours.recv()
    partner.join(10)
    sys.stdout.write(json.dumps({name: max(seconds, other[name]) for name, seconds in mine.items()}))


if __name__ == "__main__":
    main()
