"""Sets of records: a reports folder, a folder of such folders, a folder of records, one file, or a nightly run.

Each repeat of a nightly run is one sample. Files may come from elsewhere: their sizes are bounded, and a file that is
no record is reported without affecting others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.core.errors import DamagedRecord, InvalidRequest
from suite.core.record import LINES, Record, readers
from suite.report.load import StoredRecord

NIGHTLY_FOLDER = Path("reports/nightly")
DONE = "done.json"  # marks a complete repeat
MAX_DEPTH = 40  # nesting of a config, and of provenance

RecordFile = tuple[Path, str]  # file and machine


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Records of a set.

    Attributes:
        name: Name of the set.
        samples: Its records. The machine of a record is its folder below measured/.
        skipped: Files that are no records, with the reason.
    """

    name: str
    samples: tuple[StoredRecord, ...]
    skipped: tuple[tuple[str, str], ...] = ()


def read(name: str, nightly_folder: Path = NIGHTLY_FOLDER) -> RecordSet:
    """The records at a path, or of the nightly run of that name. Raises InvalidRequest if there is neither."""
    return read_place(name, place_of(name, nightly_folder))


def place_of(name: str, nightly_folder: Path = NIGHTLY_FOLDER) -> Path:
    """The path `name`, or the folder of the nightly run of that name. Raises InvalidRequest if there is neither."""
    found = [path for path in (Path(name), nightly_folder / name) if name and path.exists()]
    if not found:
        runs = sorted(folder.name for folder in nightly_folder.glob("*") if (folder / "repeats").is_dir())
        legal = f"{nightly_folder / runs[-1]}" if runs else "reports"
        raise InvalidRequest(
            f"no records at {name!r}", rule="a folder, a file or the name of a nightly run", legal=legal
        )
    return found[0]


def read_place(name: str, path: Path) -> RecordSet:
    """The set `name` of the records at a path."""
    return load(name, _files(path))


def load(name: str, files: Iterable[RecordFile]) -> RecordSet:
    """The set of the records in `files`."""
    samples, skipped = [], []
    for path, machine in files:
        for line, read_record in readers(path):
            try:
                samples.append(StoredRecord(_validated(read_record()), f"{path}{line}", machine))
            except DamagedRecord as error:
                skipped.append((f"{path}{line}", str(error)))
    return RecordSet(name, tuple(samples), tuple(skipped))


def _files(path: Path) -> Iterable[RecordFile]:
    if path.is_file():
        yield path, ""
    elif (path / "repeats").is_dir():
        yield from files_of_repeats(finished_repeats(path))
    elif (path / "records").is_dir() or (path / "measured").is_dir():
        yield from ((file, "") for file in sorted(path.glob("records/*.json")))
        yield from ((file, file.parent.name) for file in sorted(path.glob(f"measured/*/*{LINES}")))
    elif several := sorted(path.glob("*/records/*.json")):
        yield from ((file, "") for file in several)
    else:
        yield from ((file, "") for file in (*sorted(path.glob("*.json")), *sorted(path.glob(f"*{LINES}"))))


def finished_repeats(folder: Path) -> list[Path]:
    """Folders of the complete repeats of a nightly run."""
    return [done.parent for done in sorted(folder.glob(f"repeats/*/*/{DONE}"))]


def files_of_repeats(folders: Sequence[Path]) -> Iterable[RecordFile]:
    """Files of the records of repeats."""
    return ((file, "") for folder in folders for file in sorted(folder.glob("records/*.json")))


def _validated(record: Record) -> Record:
    for name in ("experiment", "launch"):
        group = record.config.get(name, {})
        if not isinstance(group, dict):
            raise DamagedRecord(f"config.{name} is {type(group).__name__}; rule: a mapping")
    for name, mapping in (("config", record.config), ("provenance", record.provenance)):
        if _is_deeper(mapping, MAX_DEPTH):
            raise DamagedRecord(f"{name} is nested deeper than {MAX_DEPTH}; rule: {MAX_DEPTH} at most")
    return record


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(child, depth - 1) for child in children)
