"""Sets of records: a reports folder or a folder of such folders, a folder of records, one file, or a nightly run.

Of a night each repeat stands for itself, with the machine's own speed while it ran. The files may come from
elsewhere: sizes are bounded, and a file that is no record costs its own row only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.core.errors import DamagedRecord, InvalidRequest
from suite.core.record import LINES, Record, readers

NIGHTS = Path("reports/nightly")
DONE = "done.json"  # marks a complete repeat, and holds the speed of the machine
MAX_DEPTH = 40  # of a config, and of a machine's description


@dataclass(frozen=True, slots=True)
class Sample:
    """One record.

    Attributes:
        machine: The folder under measured/, if any.
        reference: Seconds of the reference workload around it, by part, empty where it was not timed.
    """

    record: Record
    file: str
    machine: str = ""
    reference: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordSet:
    """Records of a set; aside: files that are no records, with the reason."""

    name: str
    found: tuple[Sample, ...]
    aside: tuple[tuple[str, str], ...] = ()


def read(name: str, nights: Path = NIGHTS) -> RecordSet:
    """Raises InvalidRequest where nothing answers to the name."""
    path = Path(name)
    if not path.exists():
        path = nights / name
    if not path.exists() or not name:
        nights_recorded = sorted(folder.name for folder in nights.glob("*") if (folder / "repeats").is_dir())
        legal = f"{nights / nights_recorded[-1]}" if nights_recorded else "reports"
        raise InvalidRequest(f"no records at {name!r}", rule="a folder, a file or the name of a night", legal=legal)
    return gathered(name, _files(path))


def gathered(name: str, files: Iterable[tuple[Path, str, dict[str, float]]]) -> RecordSet:
    samples, aside = [], []
    for path, machine, reference in files:
        for line, read in readers(path):
            try:
                samples.append(Sample(_checked(read()), f"{path}{line}", machine, reference))
            except DamagedRecord as error:
                aside.append((f"{path}{line}", str(error)))
    return RecordSet(name, tuple(samples), tuple(aside))


def _files(path: Path) -> Iterable[tuple[Path, str, dict[str, float]]]:
    """Candidates, each with its machine and the reference around it."""
    if path.is_file():
        yield path, "", {}
    elif (path / "repeats").is_dir():
        yield from of_repeats([done.parent for done in sorted(path.glob(f"repeats/*/*/{DONE}"))])
    elif (path / "records").is_dir() or (path / "measured").is_dir():
        yield from ((file, "", {}) for file in sorted(path.glob("records/*.json")))
        yield from ((file, file.parent.name, {}) for file in sorted(path.glob(f"measured/*/*{LINES}")))
    elif several := sorted(path.glob("*/records/*.json")):
        yield from ((file, "", {}) for file in several)
    else:
        yield from ((file, "", {}) for file in (*sorted(path.glob("*.json")), *sorted(path.glob(f"*{LINES}"))))


def of_repeats(folders: Sequence[Path]) -> Iterable[tuple[Path, str, dict[str, float]]]:
    for folder in folders:
        reference = told(folder)
        yield from ((file, "", reference) for file in sorted(folder.glob("records/*.json")))


def told(folder: Path) -> dict[str, float]:
    """Seconds of the reference workload around a repeat, by part: the middle of before and after."""
    try:
        data = json.loads((folder / DONE).read_text(encoding="utf-8"))
        before, after = data["before"], data["after"]
        return {part: math.sqrt(_positive(before[part]) * _positive(after[part])) for part in before if part in after}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{number} s")
    return number


def _checked(record: Record) -> Record:
    for name in ("experiment", "launch"):
        part = record.config.get(name, {})
        if not isinstance(part, dict):
            raise DamagedRecord(f"config.{name} is {type(part).__name__}; rule: a mapping")
    for name, mapping in (("config", record.config), ("provenance", record.provenance)):
        if _deeper(mapping, MAX_DEPTH):
            raise DamagedRecord(f"{name} is nested deeper than {MAX_DEPTH}; rule: {MAX_DEPTH} at most")
    return record


def _deeper(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return most == 0 or any(_deeper(element, most - 1) for element in inner)
