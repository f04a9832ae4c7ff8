"""Results of a nightly run: one record per run, with the samples of all repeats."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from suite.core.record import Metric, Outcome, Record
from suite.regression.record_sets import RecordSet
from suite.report.load import StoredRecord
from suite.runner.store import Store


def write_merged(folder: Path, record_set: RecordSet) -> None:
    """Write one record per run into `folder`/records, with the samples of all repeats."""
    samples_by_key: dict[str, list[StoredRecord]] = defaultdict(list)
    for sample in record_set.samples:
        samples_by_key[sample.record.key].append(sample)
    store = Store(folder)
    for samples in samples_by_key.values():
        worst = next((sample for sample in samples if sample.record.outcome is not Outcome.OK), samples[0])
        record = merge(worst.record, [sample.record for sample in samples])
        if record.trace is not None:
            record = replace(record, trace=_copy_trace(Path(worst.file).parents[1], record.trace, folder))
        store.write(record)


def _copy_trace(repeat_folder: Path, name: str, folder: Path) -> str | None:
    """Copy the trace of a repeat; None for a path that leaves the repeat's folder."""
    source = (repeat_folder / name).resolve()
    if not (source.is_relative_to(repeat_folder.resolve()) and source.is_file()):
        return None
    target = folder / "traces" / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return f"traces/{source.name}"


def merge(shown: Record, records: Sequence[Record]) -> Record:
    """The record `shown`, a failed one if there is one, with the samples of all."""
    metrics = {}
    for name in dict.fromkeys(name for other in records for name in other.metrics):
        repeats = [other.metrics[name] for other in records if name in other.metrics]
        equal = all(metric.values == repeats[0].values for metric in repeats)
        values = repeats[0].values if equal else tuple(value for metric in repeats for value in metric.values)
        metrics[name] = Metric(repeats[0].unit, repeats[0].better, values, repeats[0].note)
    return replace(shown, metrics=metrics, provenance={**shown.provenance, "repeats": len(records)})
