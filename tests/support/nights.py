"""Synthetic repeats of nightly runs, on machines with noise."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.core.record import Metric, Outcome, Record, Source
from suite.regression.compare.record_sets import RecordSet, Sample
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
    """A run that went well. changes: of fields; `config` and `provenance` are laid over the usual ones."""
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


def samples(records: Sequence[Record], name: str = "A", reference: Sequence[float] = ()) -> RecordSet:
    """A set of repeats; reference: seconds of the reference workload with each, if it was timed."""
    told = [{"products/1": seconds} for seconds in reference] or [{} for _ in records]
    found = [Sample(r, f"{name}/{n}.json", "", told[n]) for n, r in enumerate(records)]
    return RecordSet(name, tuple(found))


def stored(folder: Path, one: Record) -> Path:
    return Store(folder).write(one)


class Shaky:
    """Batch times on a machine that drifts, has bursts and heavy tails, and may lose its cores for minutes."""

    def __init__(self, seed: int, *, steps: float = 0.03, busy: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.steps, self.busy, self.speed = steps, busy, 1.0

    def run(self, base: float, batches: int = 18) -> list[float]:
        random = self.random
        if not self.busy:
            self.speed *= float(np.exp(random.normal(0, self.steps)))
        elif random.random() < 0.3:
            self.speed = float(random.choice([1, 2, 4], p=[0.35, 0.4, 0.25]))
        times = base * self.speed * np.exp(np.clip(0.02 * random.standard_t(2, batches), -0.5, 3))
        if random.random() < 0.3:
            begin = int(random.integers(0, batches))
            times[begin : begin + batches // 3] *= 1.8
        return [float(value) for value in times]
