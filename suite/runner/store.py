"""Store of records and traces: one file per run, named by the hash of everything that determines its numbers.

The same command finds what it has already measured; changed code, machine, libraries or config is another name. Files
appear by atomic rename, so a killed run leaves none or a whole one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
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
    from suite.runner.provenance import Circumstances

# what a record may differ in and still be the same measurement: where it and its checkpoints lie, which list of
# experiments named it, which earlier records stand, and how a scheduler is asked
_NOT_DECIDING = ("reports", "hydra", "scale", "checkpoint", "rerun", "on_error")
_ASKED_OF_A_SCHEDULER = (
    "submit",
    "scheduler",
    "dry_run",
    "site",
    "time",
    "account",
    "qos",
    "array_parallelism",
    "heartbeat_interval",
    "heartbeat_timeout",
    "memory_check",
)
# such a run was not made, or its reason may be gone: no record saves it
_NOT_MADE = (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY, Outcome.CANCELLED)


def deciding_keys(config: Mapping[str, Json]) -> dict[str, Json]:
    """The part of a config that determines its numbers. A key at its default is left out, so that a new key with a
    default is not another configuration.
    """
    deciding = {name: value for name, value in without_defaults(config).items() if name not in _NOT_DECIDING}
    experiment, launch = deciding.get("experiment"), deciding.get("launch")  # a damaged record's may be anything
    deciding["experiment"] = experiment.get("name") if isinstance(experiment, Mapping) else experiment
    system, executor = deciding.get("system"), deciding.get("executor")
    if isinstance(system, Mapping) and isinstance(executor, Mapping) and starts_ranks(executor.get("kind")):
        # ranks are started, and read nothing of how their system is simulated
        deciding["system"] = {name: value for name, value in system.items() if name != "simulation"}
    if isinstance(launch, Mapping):
        deciding["launch"] = {name: value for name, value in launch.items() if name not in _ASKED_OF_A_SCHEDULER}
    return deciding


def key_of(config: Mapping[str, Json], circumstances: Circumstances | Mapping[str, Json]) -> str:
    """20 hexadecimal digits over the config and the circumstances (machine, versions, source)."""
    text = json.dumps([deciding_keys(config), dict(circumstances)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _text(config: Mapping[str, Json]) -> str:
    return json.dumps(deciding_keys(config), sort_keys=True, default=str)


class Store:
    """The records of one reports folder."""

    _newest: dict[str, Record] | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / "records" / f"{key}.json"

    def find(self, key: str) -> Record | None:
        """The record of that name; None if there is none, or none that can be read or is its own."""
        try:
            record = Record.read(self.path(key))
        except DamagedRecord:
            return None
        return record if record.key == key else None

    def stamp(self, key: str) -> tuple[int, int] | None:
        """Another one, once the record of that name has been written again; None without one."""
        try:
            status = self.path(key).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def reusable(self, config: Mapping[str, Json], key: str, rerun: str) -> Record | None:
        """The earlier record that makes a run of `config` superfluous; None if the run is to be made.

        rerun: RunConfig.rerun. A stale record has another key; with keep, the newest record of this configuration
        stands, whatever its key is.
        """
        if rerun == "all":
            return None
        record = self.find(key)
        if record is None and rerun == "keep":
            record = self._newest_by_config().get(_text(config))
        if record is None or record.outcome in _NOT_MADE:
            return None
        again = {"failed": record.outcome is not Outcome.OK, "timeout": record.outcome is Outcome.TIMEOUT}
        return None if again.get(rerun, False) else record

    def _newest_by_config(self) -> dict[str, Record]:
        """Every record by what decides its numbers in its config, the newest last; read once."""
        if self._newest is None:
            paths = (self.folder / "records").glob("*.json")
            twins = [record for record in map(self.find, (path.stem for path in paths)) if record is not None]
            twins.sort(key=lambda record: (str(record.provenance.get("started", "")), record.key))
            self._newest = {_text(record.config): record for record in twins}
        return self._newest

    def write(self, record: Record) -> Path:
        return write_atomically(self.path(record.key), record.to_json().encode(), inside=self.folder)

    def write_trace(self, key: str, grid: Grid, trace: Trace) -> str:
        """Stores the spans of one batch; the path that a record names, relative to the folder."""
        name = f"traces/{key}.json.gz"
        content = {
            "grid": {"data": grid.data, "inter": grid.inter, "tensor": grid.tensor},
            "spans": [span.row() for span in trace],
        }
        data = gzip.compress(json.dumps(content).encode(), mtime=0)
        write_atomically(self.folder / name, data, inside=self.folder)
        return name


def source_hash(folders: Iterable[Path], endings: Sequence[str] = (".py",)) -> str:
    """A hash over the Python sources below `folders`: measured numbers belong to their code."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(file for ending in endings for file in folder.rglob(f"*{ending}")):
            digest.update(str(file.relative_to(folder.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
