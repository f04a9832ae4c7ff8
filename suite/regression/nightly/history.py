"""History of nightly runs: one line of JSON each, which is kept when the records are deleted.

Lines are only added, under the lock of the night that adds them. A torn or damaged line costs that line: the next one
starts on a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict

from filelock import FileLock, Timeout

from suite.core.errors import InvalidRequest
from suite.runner.provenance import MachineFacts

FILE = "history.jsonl"
STATE = "night.json"  # what a night writes when it begins
SCHEMA = 1
GOOD = ("good", "first", "new baseline")  # what later nights may be compared with


class Quartiles(TypedDict):
    """A metric of a run over the repeats of a night: the middle and both quartiles of `n` repeats, in `unit`."""

    unit: str
    better: str
    n: int
    median: float
    low: float
    high: float


class RunLine(TypedDict):
    """A run of a night. config: hash of its configuration"""

    experiment: str
    label: str
    config: str
    outcome: str
    source: str
    metrics: dict[str, Quartiles]


class HistoryLine(TypedDict):
    """A line of the history.

    Attributes:
        started, ended: ISO 8601.
        base: The night before that it was compared with.
        reference: Seconds of the reference workload by part.
        accepted: Whether it was accepted as a baseline later.
    """

    night: str
    started: str
    ended: str
    status: str
    exit: int
    commit: str
    source: str
    machine: MachineFacts
    base: str | None
    reference: dict[str, float]
    runs: list[RunLine]
    regressions: list[str]
    notes: list[str]
    threshold: float
    metrics: list[str]
    accepted: NotRequired[bool]


class Acceptance(TypedDict):
    """A line that accepts a night as a baseline."""

    accepted: str


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """One night at a time in a folder. Raises InvalidRequest where another holds it; the lock goes with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".night.lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InvalidRequest(
            f"another night is running in {folder}", rule="one at a time", legal="wait, or reports=ANOTHER"
        ) from error
    try:
        yield
    finally:
        lock.release()


def append(folder: Path, line: HistoryLine | Acceptance) -> None:
    """In one write, behind the end of a line, and on the disk before this returns."""
    data = json.dumps({"schema": SCHEMA, **line}, allow_nan=False).encode() + b"\n"
    handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" + data if torn else data)
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> tuple[list[HistoryLine], int]:
    """The nightly runs in order, each once, with later acceptance; and the number of damaged lines."""
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")
    except OSError:
        return [], 0
    nights: dict[str, HistoryLine] = {}
    damaged = 0
    for line in filter(None, (line.strip() for line in lines)):
        try:
            data = json.loads(line)
            if data["schema"] != SCHEMA:
                raise ValueError(data["schema"])
            if "accepted" in data:
                nights[str(data["accepted"])]["accepted"] = True
            else:
                nights[str(data["night"])] = _checked(data)
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return list(nights.values()), damaged


def _checked(data: Any) -> HistoryLine:
    """A line whose parts have the shapes that pages rely on. Raises ValueError for another."""
    shapes: dict[str, type | UnionType] = {"night": str, "status": str, "runs": list, "regressions": list}
    shapes |= {"reference": dict, "notes": list, "commit": str, "started": str, "base": str | None}
    for name, kind in shapes.items():
        if not isinstance(data.get(name), kind):
            raise ValueError(name)
    for run in data["runs"]:
        if not all(isinstance(run[name], str) for name in ("experiment", "label", "config", "outcome")):
            raise ValueError("a run's names")
        for metric in run["metrics"].values():
            if not all(isinstance(metric[name], int | float) for name in ("median", "low", "high", "n")):
                raise ValueError("a metric's numbers")
            if not (isinstance(metric["unit"], str) and isinstance(metric["better"], str)):
                raise ValueError("a metric's unit")
    if not all(isinstance(value, int | float) and value > 0 for value in data["reference"].values()):
        raise ValueError("reference")
    line: HistoryLine = data
    return line


def good(night: HistoryLine) -> bool:
    return night["status"] in GOOD or bool(night.get("accepted"))


def last_good(folder: Path, nights: Sequence[HistoryLine], before: str | None = None) -> HistoryLine | None:
    """The newest that may be compared with and whose records are still there."""
    for night in reversed(nights):
        if night["night"] != before and good(night) and (folder / night["night"] / "repeats").is_dir():
            return night
    return None


def incomplete(folder: Path, nights: Sequence[HistoryLine]) -> list[str]:
    """Nights that began and were not finished, in order."""
    night_names = {night["night"] for night in nights}
    folders = {state.parent.name: state.stat().st_mtime for state in folder.glob(f"*/{STATE}")}
    return [name for name, _ in sorted(folders.items(), key=lambda item: item[1]) if name not in night_names]
