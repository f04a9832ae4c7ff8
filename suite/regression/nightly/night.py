"""Nightly runs on disk: `FOLDER/NAME/` holds night.json, one record per run, and the records of every repeat.

The repeats of the newest runs and of baselines are kept, and night.json and the merged records of all runs. A run is
incomplete until its night.json has a status.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from filelock import FileLock, Timeout

from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest
from suite.core.files import write_atomically
from suite.regression.decide import THRESHOLD

FILE = "night.json"
REPEATS = ("repeats", "rounds", "traces")  # folders that older runs lose


class NightlyStatus(StrEnum):
    """Result of a nightly run."""

    INCOMPLETE = "incomplete"
    FIRST = "first"
    PASSED = "passed"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    BASELINE_RESET = "baseline reset"
    FAILED = "failed"


BASELINES = (NightlyStatus.PASSED, NightlyStatus.FIRST, NightlyStatus.BASELINE_RESET)


@dataclass(slots=True)
class Night:
    """A nightly run.

    Attributes:
        name: Name of its folder.
        origin: Its commands and the hash of its code, as JSON; a run is resumed if they are equal.
        commit: Short hash of the commit, with `+` if the tree differed from it; empty if unknown.
        started, ended: ISO 8601.
        exit: Exit status of the command.
        base: Accepted baseline that it was compared with; empty for none.
        threshold: Smallest relative change that matters.
        metrics: Judged timing metrics.
        accepted: Whether it was accepted as a baseline later.
    """

    name: str
    origin: str
    commit: str
    started: str
    ended: str = ""
    status: NightlyStatus = NightlyStatus.INCOMPLETE
    exit: int = 0
    machine: dict[str, str] = field(default_factory=dict)
    base: str = ""
    regressions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    threshold: float = THRESHOLD
    metrics: list[str] = field(default_factory=list)
    accepted: bool = False

    @property
    def is_baseline(self) -> bool:
        """Whether later nightly runs may be compared with this one."""
        return self.status in BASELINES or self.accepted


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Exclusive lock of a folder of nightly runs. Raises InvalidRequest if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".night.lock", blocking=False):
            yield
    except Timeout as error:
        raise InvalidRequest(
            f"another nightly run is running in {folder}", rule="one at a time", legal="wait, or reports=ANOTHER"
        ) from error


def read(folder: Path) -> tuple[list[Night], list[str]]:
    """The nightly runs of a folder, oldest first, and the names of those whose night.json is damaged."""
    nights, damaged = list[Night](), list[str]()
    for file in sorted(folder.glob(f"*/{FILE}")):
        try:
            nights.append(read_typed(Night, file))
            nights[-1].name = file.parent.name
        except InvalidRequest:
            damaged.append(file.parent.name)
    return sorted(nights, key=lambda night: night.started), damaged


def write(folder: Path, night: Night) -> None:
    """Write night.json, which is on disk when this returns."""
    write_atomically(folder / night.name / FILE, json.dumps(asdict(night), indent=1).encode(), durable=True)


def now() -> str:
    """ISO 8601, with fractions of a second, which give runs of one day their order."""
    return datetime.now(UTC).isoformat()


def begin(folder: Path, nights: Sequence[Night], origin: str, commit: str) -> Night:
    """The last run if it is incomplete and has this origin, else a new run of today."""
    if nights and nights[-1].status is NightlyStatus.INCOMPLETE and nights[-1].origin == origin:
        return nights[-1]
    today, used = time.strftime("%Y-%m-%d"), {place.name for place in folder.glob("*")}
    names = (today if number == 1 else f"{today}-{number}" for number in range(1, len(used) + 2))
    night = Night(next(name for name in names if name not in used), origin, commit, now())
    write(folder, night)
    return night


def accepted_baseline(folder: Path, nights: Sequence[Night]) -> Night | None:
    """The newest nightly run that is a baseline and whose repeats exist."""
    baselines = (each for each in reversed(nights) if each.is_baseline and (folder / each.name / "repeats").is_dir())
    return next(baselines, None)


def remove_old(folder: Path, keep: int, baseline: Path | None) -> None:
    """Remove the repeats of all but the newest `keep` runs, the accepted baseline and `baseline`; incomplete runs among
    the older ones go completely."""
    nights, _ = read(folder)
    accepted = accepted_baseline(folder, nights)
    for night in nights[:-keep]:
        place = folder / night.name
        if night is accepted or (baseline is not None and baseline.resolve() == place.resolve()):
            continue
        whole = night.status is NightlyStatus.INCOMPLETE
        for part in [place] if whole else [place / name for name in REPEATS]:
            shutil.rmtree(part, ignore_errors=True)
