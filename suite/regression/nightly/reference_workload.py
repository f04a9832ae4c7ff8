"""Reference workload that no commit changes, timed around every repeat.

It separates a slow machine from slow code. Two processes run at once, as ranks do, each with the parts of training:
matrix products, memory copies, plain Python, and round trips between the two. The workload calls no code of the suite.
A change of its sizes needs a new VERSION: times of different versions are never scaled by each other.
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
_DEADLINE = 120  # seconds: a machine that takes longer is stuck


def measure(tree: Path, python: str = sys.executable) -> dict[str, float]:
    """Seconds by part, measured in separate processes; empty if the workload failed, and then nothing is scaled."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        process = subprocess.run(
            [python, "-m", "suite.regression.nightly.reference_workload"],
            cwd=tree,
            env={**os.environ, **threads, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=True,
        )
        return {f"{part}/{VERSION}": float(seconds) for part, seconds in json.loads(process.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError, TypeError):
        return {}


def time_parts(pipe: Connection, *, first: bool) -> dict[str, float]:
    """Median seconds of each part, in one of the two processes. Both execute the parts in the same order."""
    import numpy as np

    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((_SIZE, _SIZE), dtype=np.float32) for _ in range(2))
    product = np.empty_like(a)
    target, source = np.zeros(_BYTES, np.uint8), np.ones(_BYTES, np.uint8)

    def products() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(a, b, out=product)

    def copies() -> None:
        for _ in range(_COPIES):
            np.copyto(target, source)

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
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for part in parts.values():
        part()  # touches pages and fills caches
    for _ in range(_ROUNDS):
        for name, part in parts.items():
            begin = perf_counter()
            part()
            seconds[name].append(perf_counter() - begin)
    return {name: median(samples) for name, samples in seconds.items()}


def _run_partner(pipe: Any) -> None:
    pipe.send(time_parts(pipe, first=False))


def main() -> None:
    """Print the seconds of the slower process as JSON: a batch waits for its slowest rank."""
    context = get_context("spawn")
    pipe, partner_pipe = context.Pipe()
    partner = context.Process(target=_run_partner, args=(partner_pipe,), daemon=True)
    partner.start()
    seconds = time_parts(pipe, first=True)
    partner_seconds = pipe.recv()
    partner.join(10)
    sys.stdout.write(json.dumps({name: max(value, partner_seconds[name]) for name, value in seconds.items()}))


if __name__ == "__main__":
    main()
