"""Results of a nightly run: one record per run for the page, and quartiles for the history."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from suite.core.record import Metric, Outcome, Record
from suite.regression.matching import config_key
from suite.regression.nightly.history import Quartiles, RunLine
from suite.regression.record_sets import RecordSet, Sample
from suite.runner.store import Store
from suite.stats.inference import medians
from suite.stats.spread import quartiles

_MAX_METRICS = 40  # per run in the history: experiments without batches answer claims, which pages show


def write_merged(folder: Path, record_set: RecordSet) -> int:
    """Write one record per run into `folder`/records, with the samples of all repeats. Returns their number."""
    samples_by_key: dict[str, list[Sample]] = defaultdict(list)
    for sample in record_set.samples:
        samples_by_key[sample.record.key].append(sample)
    store = Store(folder)
    for samples in samples_by_key.values():
        record = merge([sample.record for sample in samples])
        if record.trace is not None:
            repeat_folder = Path(samples[_worst([s.record for s in samples])].file).parents[1]
            record = replace(record, trace=_copy_trace(repeat_folder, record.trace, folder))
        store.write(record)
    return len(samples_by_key)


def _copy_trace(repeat_folder: Path, name: str, folder: Path) -> str | None:
    """Copy the trace of a repeat; None for a path that leaves the repeat's folder."""
    source = (repeat_folder / name).resolve()
    if not (source.is_relative_to(repeat_folder.resolve()) and source.is_file()):
        return None
    target = folder / "traces" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return f"traces/{source.name}"


def merge(records: Sequence[Record]) -> Record:
    """The first failed record, or else the first record, with the samples of all: a page shows any failure."""
    record = records[_worst(records)]
    metrics = {}
    for name in dict.fromkeys(name for other in records for name in other.metrics):
        repeats = [other.metrics[name] for other in records if name in other.metrics]
        equal = all(metric.values == repeats[0].values for metric in repeats)
        values = repeats[0].values if equal else tuple(value for metric in repeats for value in metric.values)
        metrics[name] = Metric(repeats[0].unit, repeats[0].better, values, repeats[0].note)
    return replace(record, metrics=metrics, provenance={**record.provenance, "repeats": len(records)})


def _worst(records: Sequence[Record]) -> int:
    return next((n for n, record in enumerate(records) if record.outcome is not Outcome.OK), 0)


def run_lines(record_set: RecordSet) -> list[RunLine]:
    """Outcome of each run, and the quartiles of each metric with a better direction over its repeats."""
    records_by_run: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for sample in record_set.samples:
        record = sample.record
        records_by_run[record.experiment, record.label, config_key(record)].append(record)
    return [
        {
            "experiment": experiment,
            "label": label,
            "config": config,
            "outcome": records[_worst(records)].outcome.value,
            "source": records[0].source.value,
            "metrics": dict(list(_metric_quartiles(records).items())[:_MAX_METRICS]),
        }
        for (experiment, label, config), records in records_by_run.items()
    ]


def _metric_quartiles(records: Sequence[Record]) -> dict[str, Quartiles]:
    by_metric: dict[str, Quartiles] = {}
    for name in dict.fromkeys(name for record in records for name in record.metrics):
        repeats = [record.metrics[name] for record in records if name in record.metrics]
        values = [[value for value in metric.values if math.isfinite(value)] for metric in repeats]
        centres = medians([samples for samples in values if samples])
        if repeats[0].unit and repeats[0].better and centres:
            low, median, high = quartiles(centres)
            by_metric[name] = {
                "unit": repeats[0].unit,
                "better": repeats[0].better,
                "n": len(centres),
                "median": median,
                "low": low,
                "high": high,
            }
    return by_metric


def reference_seconds(record_set: RecordSet) -> dict[str, float]:
    """Median seconds of the reference workload over the repeats, by part."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for sample in record_set.samples:
        for part, value in sample.reference.items():
            seconds[part].append(value)
    return dict(zip(seconds, medians(list(seconds.values())), strict=True))
