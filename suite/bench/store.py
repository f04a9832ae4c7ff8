"""Decides where records and traces lie and what names them: a file per run, by the hash of what decides its numbers.

The same command finds what it has already measured; changed code, machine, libraries or config is another name. Files
appear by atomic rename, so a killed run leaves none or a whole one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.core.errors import DamagedRecord
from suite.core.grid import Grid
from suite.core.record import Outcome, Record
from suite.core.trace import Trace

# what a record may differ in and still be the same measurement: where it and its checkpoints lie, and which list of
# experiments named it
_NOT_DECIDING = ("reports", "hydra", "scale", "resume")


def key_of(config: Mapping[str, Any], circumstances: Mapping[str, Any]) -> str:
    """20 hexadecimal digits over the config and the circumstances (machine, versions, source)."""
    decisive = {name: value for name, value in config.items() if name not in _NOT_DECIDING}
    decisive["experiment"] = decisive.get("experiment", {}).get("name")
    # `keep` asks which earlier records stand: it must find those that were made without it
    decisive["measure"] = {name: value for name, value in decisive.get("measure", {}).items() if name != "keep"}
    text = json.dumps([decisive, dict(circumstances)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def write_atomically(path: Path, data: bytes) -> None:
    """The file is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)


class Store:
    """The records of one reports folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / "records" / f"{key}.json"

    def find(self, key: str) -> Record | None:
        """The record of that name; None if there is none, or none that can be read."""
        try:
            return Record.from_json(self.path(key).read_text())
        except (OSError, UnicodeDecodeError, DamagedRecord):
            return None

    def stands(self, key: str, keep: str) -> bool:
        """Whether an earlier record saves a run: keep=all any outcome, ok only those that went well, none never.

        A refusal or a missing package never does: it cost nothing, and its reason may be gone."""
        record = None if keep == "none" else self.find(key)
        if record is None or record.outcome in (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY):
            return False
        return keep == "all" or record.outcome is Outcome.OK

    def write(self, record: Record) -> Path:
        path = self.path(record.key)
        write_atomically(path, record.to_json().encode())
        return path

    def write_trace(self, key: str, grid: Grid, trace: Trace) -> str:
        """Stores the spans of one batch; the path that a record names, relative to the folder."""
        name = f"traces/{key}.json.gz"
        content = {
            "grid": {"data": grid.data, "inter": grid.inter, "tensor": grid.tensor},
            "spans": [span.row() for span in trace],
        }
        write_atomically(self.folder / name, gzip.compress(json.dumps(content).encode(), mtime=0))
        return name


def source_hash(folders: Iterable[Path], endings: Sequence[str] = (".py",)) -> str:
    """A hash over the Python sources below `folders`: measured numbers belong to their code."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(file for ending in endings for file in folder.rglob(f"*{ending}")):
            digest.update(str(file.relative_to(folder.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
