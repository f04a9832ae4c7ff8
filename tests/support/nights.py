"""Synthetic repeats of nightly runs on noisy machines."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.core.record import Metric, Outcome, Record, Source
from suite.regression.record_sets import RecordSet
from suite.report.load import StoredRecord
from suite.runner.store import Store, key_of

CONFIG: dict[str, Any] = {
    "experiment": {"name": "single", "title": "One run"},
    "system": {"name": "axonn"},
    "batch": {"size": 16, "microbatch": 2},
    "measure": {"rounds": 2, "batches": 4},
    "seed": 0,
    "reports": "reports",
}
MACHINE = {"processor": "EPYC", "cores": 2, "memory_bytes": 8e9, "system": "Linux 6", "python": "3.12.0"}
LOSS = [3.0, 2.5, 2.25]


def record(times: Sequence[float] = (0.1,) * 8, *, label: str = "axonn 2x1", **changes: Any) -> Record:
    """A successful run. changes: fields to replace; `config` and `provenance` are merged with the default ones."""
    config = copy.deepcopy(CONFIG) | changes.pop("config", {})
    provenance = {
        "machine": dict(MACHINE),
        "versions": {"torch": "2.11"},
        "source": "0",
        "commit": {"hash": "a" * 40, "dirty": False},
        "started": "2026-11-01T00:00:00+00:00",
    } | changes.pop("provenance", {})
    fields: dict[str, Any] = {
        "key": key_of(config, provenance),
        "experiment": config["experiment"]["name"],
        "system": "axonn",
        "label": label,
        "outcome": Outcome.OK,
        "source": Source.MEASURED,
        "config": config,
        "metrics": {
            "batch_time": Metric("s", "lower", tuple(times)),
            "peak_memory": Metric("B", "lower", (4096.0,)),
        },
        "series": {"loss": list(LOSS)},
        "provenance": provenance,
    }
    return Record(**(fields | changes))


def samples(records: Sequence[Record], name: str = "A") -> RecordSet:
    """A set of repeats."""
    return RecordSet(name, tuple(StoredRecord(r, f"{name}/{n}.json") for n, r in enumerate(records)))


def store(folder: Path, stored_record: Record) -> Path:
    """Write a record below a reports folder."""
    return Store(folder).write(stored_record)


class NoisyMachine:
    """Batch times of a machine with drift, bursts and heavy tails, which other processes may occupy for minutes.

    Args:
        seed: Seed of the noise.
        drift: Relative change of speed between two runs.
        busy: Whether other processes take cores away.
    """

    def __init__(self, seed: int, *, drift: float = 0.03, busy: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.drift, self.busy, self.slowdown = drift, busy, 1.0

    def run(self, base: float, batches: int = 18) -> list[float]:
        """Seconds of each batch of a run whose batches take `base` seconds without noise."""
        random = self.random
        if not self.busy:
            self.slowdown *= float(np.exp(random.normal(0, self.drift)))
        elif random.random() < 0.3:
            self.slowdown = float(random.choice([1, 2, 4], p=[0.35, 0.4, 0.25]))
        times = base * self.slowdown * np.exp(np.clip(0.02 * random.standard_t(2, batches), -0.5, 3))
        if random.random() < 0.3:
            begin = int(random.integers(0, batches))
            times[begin : begin + batches // 3] *= 1.8
        return [float(value) for value in times]
