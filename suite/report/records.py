"""Records as a pandas DataFrame: `from suite import load_records`, and `records.csv` next to the page.

A row is one record. Its columns are the derived numbers of the page (`derive.Row`) and the config keys that people
filter by, under the names that the command line takes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from suite.core.errors import InvalidRequest
from suite.core.record import Record
from suite.report import derive
from suite.report.load import ReportStore, at, read_store, real

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
COLUMNS = (*derive.RecordRow.__dataclass_fields__, *TEXT, *WHOLE, *REAL)
_LARGEST = 2**53  # of a whole number that a table holds exactly


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
    return tabled(derive.rows(derive.groups(store)), store)


def tabled(rows: Mapping[str, derive.RecordRow], store: ReportStore) -> pd.DataFrame:
    """The table of `load_records`, in the order of `rows`, by each record's file."""
    records = {entry.file: entry.record for entry in store.entries}
    table = pd.DataFrame([{**asdict(row), **_config(records[file])} for file, row in rows.items()], columns=COLUMNS)
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
