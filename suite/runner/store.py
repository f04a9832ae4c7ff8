"""Store of records and traces: one file per run, named by a hash of everything that determines its numbers.

The same command finds its earlier records. Changed code, machine, libraries or configuration give another key. Files
are written atomically, so a killed run leaves no partial file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from suite.config.defaults import without_defaults
from suite.config.executor import starts_ranks
from suite.core.errors import DamagedRecord
from suite.core.files import write_atomically
from suite.core.grid import Grid
from suite.core.record import Outcome, Record
from suite.core.trace import Trace
from suite.core.values import Json

if TYPE_CHECKING:
    from suite.runner.runs import Run

# keys without influence on the numbers of a measurement: folders, lists of experiments, requests to a scheduler, and
# how long a parent waits for ranks
_NOT_DECIDING = ("reports", "scale", "checkpoint", "rerun", "on_error")
SCHEDULER_KEYS = (
    "submit",
    "scheduler",
    "time",
    "account",
    "qos",
    "array_parallelism",
    "grace",
    "heartbeat_interval",
    "heartbeat_timeout",
    "memory_check",
)
# outcomes of runs that did not start, or whose reason may no longer hold: runs with these outcomes always run again
_NOT_STARTED = (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY, Outcome.CANCELLED)


def deciding_keys(config: Mapping[str, Json]) -> dict[str, Json]:
    """The part of a configuration that determines the measured numbers.

    Keys with their default value are left out, so that a new key with a default does not change existing hashes.
    """
    deciding = {name: value for name, value in without_defaults(config).items() if name not in _NOT_DECIDING}
    experiment, launch = deciding.get("experiment"), deciding.get("launch")  # of any type in a damaged record
    deciding["experiment"] = experiment.get("name") if isinstance(experiment, Mapping) else experiment
    system, executor = deciding.get("system"), deciding.get("executor")
    if isinstance(system, Mapping) and isinstance(executor, Mapping) and starts_ranks(executor.get("kind")):
        # ranks do not read how their system is simulated
        deciding["system"] = {name: value for name, value in system.items() if name != "simulation"}
    if isinstance(launch, Mapping):
        deciding["launch"] = {name: value for name, value in launch.items() if name not in SCHEDULER_KEYS}
    return deciding


def key_of(config: Mapping[str, Json], circumstances: Mapping[str, Json]) -> str:
    """20 hexadecimal digits over the config and the circumstances (machine, versions, source)."""
    text = json.dumps([deciding_keys(config), dict(circumstances)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _text(config: Mapping[str, Json]) -> str:
    return json.dumps(deciding_keys(config), sort_keys=True, default=str)


class Store:
    """The records of one reports folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / "records" / f"{key}.json"

    def find(self, key: str) -> Record | None:
        """The record with this key; None if the file is missing, unreadable, or holds the record of another key."""
        try:
            record = Record.read(self.path(key))
        except DamagedRecord:
            return None
        return record if record.key == key else None

    def stamp(self, key: str) -> tuple[int, int] | None:
        """A value that changes whenever the record is written; None without a record."""
        try:
            status = self.path(key).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def reusable(self, run: Run, *, key: str = "", rerun: str = "") -> Record | None:
        """The earlier record to use instead of a new run; None if the run must be executed.

        Args:
            run: The run.
            key: Key of its record, if not run.key. A record of changed code, data, machine or versions has another key.
            rerun: Records to repeat, if not run.config.rerun. With `keep`, the newest record of this configuration is
                reusable, whatever its key.
        """
        rerun = rerun or run.config.rerun
        if rerun == "all":
            return None
        record = self.find(key or run.key)
        if record is None and rerun == "keep":
            record = self.newest(run.settings)
        if record is None or record.outcome in _NOT_STARTED:
            return None
        repeat = {"failed": record.outcome is not Outcome.OK, "timeout": record.outcome is Outcome.TIMEOUT}
        return None if repeat.get(rerun, False) else record

    def newest(self, config: Mapping[str, Json]) -> Record | None:
        """The newest record of this configuration, whatever its key, at the time of the first call."""
        return self._newest.get(_text(config))

    @cached_property
    def _newest(self) -> dict[str, Record]:
        """The newest record of each configuration, by the text of its deciding keys."""
        records = [self.find(path.stem) for path in (self.folder / "records").glob("*.json")]
        in_order = sorted(filter(None, records), key=lambda r: (str(r.provenance.get("started", "")), r.key))
        return {_text(record.config): record for record in in_order}

    def write(self, record: Record) -> Path:
        return write_atomically(self.path(record.key), record.to_json().encode(), inside=self.folder, durable=True)

    def write_trace(self, key: str, grid: Grid, trace: Trace) -> str:
        """Write the spans of one batch. Returns the path for the record, relative to the folder."""
        name = f"traces/{key}.json.gz"
        content = {
            "grid": {"data": grid.data, "inter": grid.inter, "tensor": grid.tensor},
            "spans": [span.row() for span in trace],
        }
        data = gzip.compress(json.dumps(content).encode(), mtime=0)
        write_atomically(self.folder / name, data, inside=self.folder)
        return name


def source_hash(folders: Iterable[Path], endings: Sequence[str] = (".py",)) -> str:
    """Hash of the source files below `folders`; a folder may be a file."""
    digest = hashlib.sha256()
    for folder in folders:
        files = [folder] if folder.is_file() else [file for ending in endings for file in folder.rglob(f"*{ending}")]
        for file in sorted(files):
            digest.update(str(file.relative_to(folder.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
