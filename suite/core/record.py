"""Record of a run: one JSON document for every run, successful or not.

A record holds raw samples. Statistics are computed when it is read, so a new statistic needs no new run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from suite.core.errors import DamagedRecord, OtherSchema, refuse

SCHEMA_VERSION = 3
MAX_BYTES = 64 << 20  # of a record file, which may come from an untrusted source


class Outcome(StrEnum):
    """Outcome of a run. A record of any outcome but OK keeps its samples so far and a reason."""

    OK = "ok"
    FAILED = "failed"  # a rank raised
    TIMEOUT = "timeout"  # a rank had not finished at the deadline
    OOM = "oom"  # a rank could not allocate memory
    DIVERGED = "diverged"  # a loss was not finite
    UNSUPPORTED = "unsupported"  # the system refuses this combination
    MISSING_DEPENDENCY = "missing_dependency"
    LOST_RANK = "lost_rank"  # a rank or its parent process ended without a report
    CANCELLED = "cancelled"  # a person or a scheduler ended the run early


CANNOT = (Outcome.UNSUPPORTED, Outcome.MISSING_DEPENDENCY)  # no rank started: machine or system lacks support


class Source(StrEnum):
    """Source of a number. The page shows it next to every number."""

    MEASURED = "measured"
    EMULATED = "emulated"
    SIMULATED = "simulated"
    ANALYTIC = "analytic"


@dataclass(frozen=True, slots=True)
class Metric:
    """Raw samples of one quantity.

    Attributes:
        better: 'lower', 'higher', or '' for a metric without a direction.
        evidence: Evidence of an answer to a claim (suite.claims.claim.Evidence). The claim's id names the metric.
        reads: Constants, plans, graphs and other claims that the answer reads.
        fed_by: Claims that the entries of `reads` were fitted to.
        null: Value of the null model for each of our values.
        seconds: Seconds that the function of the answer took; None for other metrics.
    """

    unit: str
    better: str
    values: tuple[float, ...]
    note: str = ""
    evidence: str = ""
    reads: tuple[str, ...] = ()
    fed_by: tuple[str, ...] = ()
    null: tuple[float, ...] = ()
    seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one system.

    Attributes:
        key: Hash of the inputs that decide the numbers: resolved config, machine, library versions and, for measured
            rows, source tree.
        config: Resolved config of the ranks.
        memory: Bytes per rank by kind, {"predicted": {kind: [per rank]}, "measured": {...}}.
        series: One list per curve, e.g. {"loss": [...]}, indexed by batch.
        panels: Panels of a published figure, as suite.config.panels.to_record writes them.
        trace: Path of the trace of one batch, relative to the folder of the store; None without a trace.
        provenance: Machine, library versions, commit, command, times.
        migrated_from: Schema version and key of the original file; None for a record that was not migrated.
    """

    key: str
    experiment: str
    system: str
    label: str
    outcome: Outcome
    source: Source
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    memory: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    panels: list[dict[str, Any]] = field(default_factory=list)
    trace: str | None = None
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    migrated_from: dict[str, Any] | None = None
    schema_version: int = SCHEMA_VERSION

    def to_json(self, indent: int | None = 1) -> str:
        # JSON has no NaN or infinity: a diverged loss is written as null
        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return value if value - value == 0 else None
            if isinstance(value, dict):
                return {str(key): plain(element) for key, element in value.items()}
            if isinstance(value, list | tuple):
                return [plain(element) for element in value]
            return value

        return json.dumps(plain(asdict(self)), indent=indent, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Parse a record. Raises OtherSchema for another schema version, DamagedRecord for any other invalid text."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedRecord(f"not JSON: {error}") from error
        if not isinstance(data, dict) or "schema_version" not in data:
            raise DamagedRecord("no schema_version")
        if data["schema_version"] != SCHEMA_VERSION:
            versions = f"schema version {data['schema_version']}, this suite reads {SCHEMA_VERSION}"
            raise OtherSchema(f"{versions}; run the command of the record again")
        try:
            data["outcome"] = Outcome(data["outcome"])
            data["source"] = Source(data["source"])
            data["metrics"] = {name: _metric(fields_of_metric) for name, fields_of_metric in data["metrics"].items()}
            data["series"] = {name: list(_floats(values)) for name, values in data["series"].items()}
            data["notes"] = tuple(str(note) for note in data["notes"])
            record = cls(**data)
            mappings = [record.config, record.provenance, record.migrated_from or {}, *record.panels]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DamagedRecord(f"{type(error).__name__}: {error}") from error
        texts = [record.key, record.experiment, record.system, record.label, record.reason]
        for metric in record.metrics.values():
            texts += [metric.unit, metric.better, metric.note, metric.evidence]
        if not all(isinstance(each, dict) for each in mappings) or not all(isinstance(each, str) for each in texts):
            words = "key, experiment, system, label, reason and the words of a metric"
            raise DamagedRecord(f"config, provenance, migrated_from and each of panels are mappings; {words} are text")
        return record

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record of a file. Raises like from_json, and DamagedRecord for an unreadable or too large file."""
        return cls.from_json(_text(path))


LINES = ".jsonl"  # suffix of a file with one record per line


def readers(path: Path) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield, for each record of a file, the suffix of its name after the path and a reader that raises DamagedRecord.

    A file `KEY.json` holds one record, with an empty suffix. A file `EXPERIMENT.jsonl` holds one record per line, with
    the suffix `#LINE`.
    """
    lines = None
    with suppress(DamagedRecord):  # its reader raises again
        lines = _text(path).split("\n") if path.suffix == LINES else None
    if lines is None:
        yield "", partial(Record.read, path)
    for number, line in enumerate(lines or (), 1):
        if line.strip():
            yield f"#{number}", partial(Record.from_json, line)


def _text(path: Path) -> str:
    """Text of a file. Raises DamagedRecord for a file that cannot be read or is too large."""
    try:
        refuse([(not path.is_file(), "not a file", "")], DamagedRecord)
        size = path.stat().st_size
        refuse([(size > MAX_BYTES, f"{size} bytes", f"a record is at most {MAX_BYTES} bytes")], DamagedRecord)
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DamagedRecord(f"{type(error).__name__}: {error}") from error


def _metric(found: dict[str, Any]) -> Metric:
    numbers = {"values": _floats(found["values"]), "null": _floats(found.get("null", []))}
    names = {name: tuple(map(str, found.get(name, ()))) for name in ("reads", "fed_by")}
    seconds = found.get("seconds")
    return Metric(**{**found, **numbers, **names, "seconds": None if seconds is None else float(seconds)})


def _floats(values: list[float | None]) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else float(value) for value in values)
