"""History of nightly runs: one line of JSON each, which remains when the records are deleted.

Lines are appended under the lock of the nightly run that adds them. A damaged line affects no other line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict

from filelock import FileLock, Timeout

from suite.core.errors import InvalidRequest
from suite.runner.provenance import MachineFacts

FILE = "history.jsonl"
STATE = "night.json"  # written when a nightly run begins
SCHEMA = 1


class NightlyStatus(StrEnum):
    """Result of a nightly run."""

    FIRST = "first"
    PASSED = "passed"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    BASELINE_RESET = "baseline reset"
    FAILED = "failed"


BASELINES = (NightlyStatus.PASSED, NightlyStatus.FIRST, NightlyStatus.BASELINE_RESET)
_FORMER = {
    "good": NightlyStatus.PASSED,
    "undecided": NightlyStatus.INCONCLUSIVE,
    "new baseline": NightlyStatus.BASELINE_RESET,
}  # as older histories have them


class Quartiles(TypedDict):
    """Median and quartiles of a metric over the `n` repeats of a nightly run, in `unit`."""

    unit: str
    better: str
    n: int
    median: float
    low: float
    high: float


class RunLine(TypedDict):
    """One run of a nightly run. config: hash of its configuration."""

    experiment: str
    label: str
    config: str
    outcome: str
    source: str
    metrics: dict[str, Quartiles]


class HistoryLine(TypedDict):
    """A line of the history.

    Attributes:
        night: Name of the nightly run.
        started, ended: ISO 8601.
        status: A NightlyStatus.
        base: Accepted baseline that it was compared with.
        reference: Seconds of the reference workload by part.
        metrics: Judged timing metrics.
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
    """A line that accepts a nightly run as a baseline."""

    accepted: str


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Exclusive lock of a folder of nightly runs. Raises InvalidRequest if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    file_lock = FileLock(folder / ".night.lock", blocking=False)
    try:
        file_lock.acquire()
    except Timeout as error:
        raise InvalidRequest(
            f"another nightly run is running in {folder}", rule="one at a time", legal="wait, or reports=ANOTHER"
        ) from error
    try:
        yield
    finally:
        file_lock.release()


def append(folder: Path, line: HistoryLine | Acceptance) -> None:
    """Append a line in one write, after the end of an incomplete line, and flush it to the disk."""
    data = json.dumps({"schema": SCHEMA, **line}, allow_nan=False).encode() + b"\n"
    handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        incomplete = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" + data if incomplete else data)
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> tuple[list[HistoryLine], int]:
    """Nightly runs in order, each once, with later acceptance; and the number of damaged lines."""
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")
    except OSError:
        return [], 0
    runs: dict[str, HistoryLine] = {}
    damaged = 0
    for line in filter(None, (line.strip() for line in lines)):
        try:
            data = json.loads(line)
            if data["schema"] != SCHEMA:
                raise ValueError(data["schema"])
            if "accepted" in data:
                runs[str(data["accepted"])]["accepted"] = True
            else:
                runs[str(data["night"])] = _validated(data)
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return list(runs.values()), damaged


def _validated(data: Any) -> HistoryLine:
    """A line with the types that pages rely on. Raises ValueError for another type."""
    types: dict[str, type | UnionType] = {"night": str, "status": str, "runs": list, "regressions": list}
    types |= {"reference": dict, "notes": list, "commit": str, "started": str, "base": str | None}
    for name, kind in types.items():
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
    data["status"] = _FORMER.get(data["status"], data["status"])
    line: HistoryLine = data
    return line


def is_baseline(line: HistoryLine) -> bool:
    """Whether later nightly runs may be compared with this one."""
    return line["status"] in BASELINES or bool(line.get("accepted"))


def accepted_baseline(folder: Path, lines: Sequence[HistoryLine]) -> HistoryLine | None:
    """The newest nightly run that is a baseline and whose records exist."""
    for line in reversed(lines):
        if is_baseline(line) and (folder / line["night"] / "repeats").is_dir():
            return line
    return None


def incomplete_runs(folder: Path, lines: Sequence[HistoryLine]) -> list[str]:
    """Names of nightly runs that began and did not finish, oldest first."""
    names = {line["night"] for line in lines}
    started = {state.parent.name: state.stat().st_mtime for state in folder.glob(f"*/{STATE}")}
    return [name for name in sorted(started, key=lambda name: started[name]) if name not in names]
