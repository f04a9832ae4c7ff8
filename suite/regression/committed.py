"""Comparison of committed records with the present configuration of their experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from suite.config.families import groups
from suite.core.errors import SuiteError
from suite.core.record import Record
from suite.core.values import Json, leaves
from suite.runner.keys_read import BOOKKEEPING, DECLARED, below, reads
from suite.runner.runs import Run, expand
from suite.runner.store import SCHEDULER_KEYS

# keys that decide no measured number; `searches` decides the predicted memory alone
_NOT_DECIDING = frozenset((*BOOKKEEPING, *DECLARED, *(f"launch.{key}" for key in SCHEDULER_KEYS), "pruning.searches"))


def changed_settings(record: Record) -> str:
    """The settings of the record that its experiment no longer has; empty if the experiment still has this run.

    A key counts if the run reads it and both sides have it: a key that was added, removed or renamed later is a change
    of code, not of the configuration.
    """
    changes = [_changes(record.config, run) for run in _runs(record.experiment) if run.label == record.label]
    if not changes:
        return f"label={record.label}; rule: a run that experiment={record.experiment} has"
    fewest = min(changes, key=len)
    return "; ".join(fewest)


def _changes(old: Mapping[str, Json], run: Run) -> list[str]:
    values = dict(leaves(run.settings))
    read = reads(run.config) or frozenset(values)
    return [
        f"{key}={value}; rule: as in the experiment; legal: {values[key]}"
        for key, value in leaves(old)
        if below(key, read) and not below(key, _NOT_DECIDING) and _code(values.get(key, value)) != _code(value)
    ]


def _code(value: Json) -> Json:
    """A value as it is compared. Of a path in the suite the class counts, as modules may move."""
    if isinstance(value, str) and value.startswith("suite."):
        name = value.rpartition(".")[2]
        return name if name[:1].isupper() else ""
    return value


@cache
def _runs(experiment: str) -> Sequence[Run]:
    """The runs of an experiment; none without such an experiment."""
    if experiment not in groups()["experiment"]:
        return ()
    try:
        return expand([f"experiment={experiment}"])
    except SuiteError:
        return ()
