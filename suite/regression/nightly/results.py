"""Results of a nightly run: one record per run for the page, and numbers for the history."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from suite.core.record import Metric, Outcome, Record
from suite.regression.compare.matching import config_key
from suite.regression.compare.record_sets import RecordSet, Sample
from suite.regression.nightly.history import Quartiles, RunLine
from suite.runner.store import Store

_MOST = 40  # metrics of a run that the history keeps: experiments without batches are claims, which pages show


def write_merged(folder: Path, samples: RecordSet) -> int:
    """Fills `folder`/records with one record per run that holds the samples of all repeats; how many."""
    runs: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples.found:
        runs[sample.record.key].append(sample)
    store = Store(folder)
    for group in runs.values():
        record = merged([sample.record for sample in group])
        if record.trace is not None:
            base = Path(group[_worst([s.record for s in group])].file).parents[1]
            record = replace(record, trace=_trace(base, record.trace, folder))
        store.write(record)
    return len(runs)


def _trace(base: Path, name: str, folder: Path) -> str | None:
    """The repeat's own trace, copied; a path that leaves its folder is none."""
    source = (base / name).resolve()
    if not (source.is_relative_to(base.resolve()) and source.is_file()):
        return None
    target = folder / "traces" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return f"traces/{source.name}"


def merged(records: Sequence[Record]) -> Record:
    """The first that went worst, with the samples of all: a failure among repeats is what a page has to show."""
    record = records[_worst(records)]
    names = dict.fromkeys(name for other in records for name in other.metrics)
    metrics = {}
    for name in names:
        kinds = [other.metrics[name] for other in records if name in other.metrics]
        same = all(kind.values == kinds[0].values for kind in kinds)
        values = kinds[0].values if same else tuple(value for kind in kinds for value in kind.values)
        metrics[name] = Metric(kinds[0].unit, kinds[0].better, values, kinds[0].note)
    provenance = {**record.provenance, "repeats": len(records)}
    return replace(record, metrics=metrics, provenance=provenance)


def _worst(records: Sequence[Record]) -> int:
    return next((n for n, record in enumerate(records) if record.outcome is not Outcome.OK), 0)


def runs(samples: RecordSet) -> list[RunLine]:
    """By run: its outcome, and of each metric with a direction the middle and quartiles of its repeats."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for sample in samples.found:
        record = sample.record
        groups[record.experiment, record.label, config_key(record)].append(record)
    return [
        {
            "experiment": experiment,
            "label": label,
            "config": config,
            "outcome": records[_worst(records)].outcome.value,
            "source": records[0].source.value,
            "metrics": dict(list(_metrics(records).items())[:_MOST]),
        }
        for (experiment, label, config), records in groups.items()
    ]


def _metrics(records: Sequence[Record]) -> dict[str, Quartiles]:
    quartiles: dict[str, Quartiles] = {}
    kinds = {name: kind for record in reversed(records) for name, kind in record.metrics.items()}
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        kind = kinds[name]
        values = [[v for v in r.metrics[name].values if math.isfinite(v)] for r in records if name in r.metrics]
        middles = [float(np.median(side)) for side in values if side]
        if kind.unit and kind.better and middles:
            low, middle, high = (float(value) for value in np.quantile(middles, [0.25, 0.5, 0.75]))
            quartiles[name] = {
                "unit": kind.unit,
                "better": kind.better,
                "n": len(middles),
                "median": middle,
                "low": low,
                "high": high,
            }
    return quartiles


def reference(samples: RecordSet) -> dict[str, float]:
    """Seconds of the reference workload in the middle of the night, by part."""
    values_by_metric: dict[str, list[float]] = defaultdict(list)
    for sample in samples.found:
        for part, seconds in sample.reference.items():
            values_by_metric[part].append(seconds)
    return {part: float(np.median(values)) for part, values in values_by_metric.items()}
