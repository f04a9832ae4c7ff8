"""Records as a pandas DataFrame: `from suite import load_records`, and `records.csv` next to the page.

A row is one record. Its columns are the derived numbers of the page (`NUMBERS`) and the config keys that people
filter by, under the names that the command line takes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from suite.config.experiment import PREDICTED
from suite.core.errors import InvalidRequest
from suite.core.record import Record
from suite.core.trace import BUBBLE
from suite.report import derive
from suite.report.load import ReportStore, StoredRecord, at, grid_of, read_store, real

# column: where its value stands in a config
TEXT = {
    "model": "model.name",
    "data": "data.name",
    "graph": "graph.name",
    "partitioner": "partitioner.name",
    "exchange": "exchange.name",
    "executor": "executor.name",
    "machine.simulated": "executor.machine.name",
    "efficiency.simulated": "executor.efficiency.name",
    "schedule": "schedule._target_",
    "weights": "weights._target_",
    "memory": "memory.name",
    "precision": "precision.name",
    "pruning": "pruning.name",
    "optimizer": "optimizer._target_",
    "split": "split",
    "activation_checkpointing": "activation_checkpointing",
    "comm.transport": "comm.transport",
    "launch.device": "launch.device",
    "tag": "tag",
}
WHOLE = (
    *("grid.inter", "grid.data", "grid.tensor", "batch.size", "batch.microbatch"),
    *("optimizer.bucket_numel", "update_interval", "launch.threads", "measure.rounds", "seed"),
)
REAL = ("pruning.sparsity", "optimizer.lr")
_LARGEST = 2**53  # of a whole number that a table holds exactly


def _losses(entry: StoredRecord | None) -> Sequence[float]:
    return entry.record.series.get("loss", []) if entry else []


def _seconds(entry: StoredRecord) -> float:
    return derive.samples(entry.record, derive.BATCH_TIME).median


def _bubble_share(seconds: Mapping[str, float]) -> float:
    return derive.ratio(seconds.get(BUBBLE, derive.NAN), sum(seconds.values()))


def _rate(metric: str) -> Callable[[StoredRecord], float]:
    """A metric of each run divided by the batch time."""
    return lambda one: derive.ratio(derive.samples(one.record, metric).median, _seconds(one))


def _sample(metric: str, part: str = "median") -> Callable[[StoredRecord], float]:
    return lambda one: asdict(derive.samples(one.record, metric))[part]


# Numbers of a record: times in seconds, memory in bytes of the largest rank, fractions from 0 to 1.
NUMBERS: Mapping[str, Callable[[StoredRecord], object]] = {
    "key": lambda one: one.record.key,
    "experiment": lambda one: one.record.experiment,
    "system": lambda one: one.record.system,
    "label": lambda one: one.record.label,
    "machine": lambda one: one.machine,
    "outcome": lambda one: one.record.outcome.value,
    "source": lambda one: one.record.source.value,
    "reason": lambda one: one.record.reason,
    "file": lambda one: one.file,
    "comparable": lambda one: derive.comparable(one.record),  # whether ratios of the times are meaningful
    "busy": lambda one: derive.busy(one.record),
    "grid": lambda one: str(grid_of(one.record) or (one.trace.grid if one.trace else "")),
    "batch_time_median": _sample(derive.BATCH_TIME),
    "batch_time_min": _sample(derive.BATCH_TIME, "low"),
    "batch_time_max": _sample(derive.BATCH_TIME, "high"),
    "batch_time_n": _sample(derive.BATCH_TIME, "n"),
    "simulated_time": _sample(PREDICTED[derive.BATCH_TIME]),
    "tokens_per_second": _rate("tokens_per_batch"),
    "flops_per_batch": _sample("flops_per_batch"),
    "flops_per_batch_recompute": _sample("flops_per_batch_recompute"),
    "peak_flops": _sample("peak_flops", "high"),
    "percent_of_peak": lambda one: derive.percent_of_peak(one.record, _seconds(one)),
    "efficiency": derive.efficiency,
    "bubble_share": lambda one: _bubble_share(derive.shares(one)),
    "memory_predicted_peak": lambda one: derive.memory_peak(one.record, "predicted"),
    "memory_measured_peak": lambda one: derive.memory_peak(one.record, "measured"),
    "final_loss": lambda one: [derive.NAN, *_losses(one)][-1],
}
COLUMNS = (*NUMBERS, "current", "loss_difference", *TEXT, *WHOLE, *REAL)


def numbers(found: Iterable[derive.ExperimentGroup]) -> pd.DataFrame:
    """The numbers of every record under its file, in the order of the page.

    `current` is False for a record that a newer one of the same label supersedes. `loss_difference` is that to the
    reference of the experiment.
    """
    rows = [
        {
            **{name: of(entry) for name, of in NUMBERS.items()},
            "current": current,
            "loss_difference": derive.loss_difference(_losses(entry), _losses(group.reference)),
        }
        for group in found
        for entries, current in ((group.entries, True), (group.earlier, False))
        for entry in entries
    ]
    table = pd.DataFrame(rows, columns=[*NUMBERS, "current", "loss_difference"])
    return table.set_index("file", drop=False)


def load_records(folder: str | Path = "reports") -> pd.DataFrame:
    """The records of a reports folder, one row each, in the order of the page.

    Times are in seconds, memory in bytes, `*_share` and `efficiency` from 0 to 1, `percent_of_peak` from 0 to 100.

    * Identity: `key`, `experiment`, `system`, `label`, `machine` (the folder below `measured/`; empty for records made
      here), `file`, `grid` (stages x replicas).
    * Outcome: `outcome`, `reason`, `source` (measured, emulated, simulated or analytic), `current` (False where a newer
      record of the same label exists), `comparable` (False where more ranks than cores ran).
    * Time: `batch_time_median`, `batch_time_min`, `batch_time_max` (s, of `batch_time_n` batches),
      `simulated_time` (s), `tokens_per_second`.
    * Compute: `flops_per_batch`, `flops_per_batch_recompute` (flop, without and with recomputation), `peak_flops`
      (flop/s of all devices), `percent_of_peak`, `efficiency`, `bubble_share`.
    * Memory of the rank that holds most: `memory_predicted_peak`, `memory_measured_peak` (bytes).
    * Loss: `final_loss` (nat), `loss_difference` (relative, the largest over batches to the experiment's reference).
    * Config, named by its key; a group (`model`) by its choice or class: `model`, `data`, `graph`, `partitioner`,
      `exchange`, `executor`, `machine.simulated`, `efficiency.simulated`, `schedule`, `weights`, `memory`, `precision`,
      `pruning`, `optimizer`, `split`, `activation_checkpointing`, `comm.transport`, `launch.device`, `tag` (text);
      `grid.inter`, `grid.data`, `grid.tensor`, `batch.size`, `batch.microbatch` (rows of a batch),
      `optimizer.bucket_numel` (weights), `update_interval` (microbatches), `launch.threads`, `measure.rounds`, `seed`
      (whole numbers); `pruning.sparsity` (share), `optimizer.lr`.

    * Raw data, as dictionaries of lists: `samples` (every sample of each metric, such as `batch_time` in s), `series`
      (`loss` of each batch in nat, `validation_loss`, scores by epoch). `records.csv` does not have them.

    Numbers that a record does not hold are nan or NA, text is empty. A file that is no record is named in a warning.

    Args:
        folder: the reports folder, as a run's `reports=` names it.

    Raises:
        InvalidRequest: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidRequest(
            f"folder={str(folder)!r}", rule="an existing reports folder", legal="'reports', after a run"
        )
    store = read_store(folder)
    if store.aside:
        names = ", ".join(f"{entry.name} ({entry.kind.value})" for entry in store.aside)
        warnings.warn(f"left out of {folder}: {names}", stacklevel=2)
    table, records = frame(store), {entry.file: entry.record for entry in store.entries}
    return table.assign(
        samples=[{name: [*each.values] for name, each in records[file].metrics.items()} for file in table["file"]],
        series=[{name: [*values] for name, values in records[file].series.items()} for file in table["file"]],
    )


def frame(store: ReportStore) -> pd.DataFrame:
    """The table of `load_records` for a store that has been read."""
    return tabled(numbers(derive.groups(store)), store)


def tabled(rows: pd.DataFrame, store: ReportStore) -> pd.DataFrame:
    """The table of `load_records`, in the order of `rows`, by each record's file."""
    records = {entry.file: entry.record for entry in store.entries}
    config = pd.DataFrame([_config(records[file]) for file in rows["file"]], columns=[*TEXT, *WHOLE, *REAL])
    table = rows.reset_index(drop=True).join(config)
    return table.astype(dict.fromkeys(WHOLE, "Int64") | dict.fromkeys(REAL, "float64"))


def _config(record: Record) -> dict[str, Any]:
    """The values of the config's columns; a record from elsewhere may hold anything in their place."""
    whole = {name: _at(record, name) for name in WHOLE}
    return {
        **{name: _text(_at(record, path)) for name, path in TEXT.items()},
        **{name: x if type(x) is int and abs(x) <= _LARGEST else None for name, x in whole.items()},
        **{name: real(_at(record, name)) for name in REAL},
    }


def _at(record: Record, path: str) -> Any:
    return at(record.config, *path.split("."))


def _text(value: Any) -> str:
    """Text as it is, a class by its last name, a whole number as text, and nothing for anything else."""
    if type(value) is int and abs(value) <= _LARGEST:
        return str(value)
    if not isinstance(value, str):
        return ""
    return value.rpartition(".")[2] if value.startswith(("suite.", "baselines.")) else value
