"""Load the records of a reports folder, and set other files aside with a reason.

A bad file does not affect the other records: a truncated file, a record of another schema version, or a trace path that
leaves the folder only loses its own row of the page. Files may come from untrusted sources, so this module checks their
sizes and shapes, and later code relies on the checks.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from suite.core.errors import Broken, DamagedRecord, InvalidRequest, OtherSchema, SuiteError, refuse
from suite.core.grid import Grid
from suite.core.record import LINES, Record, Source, readers
from suite.core.trace import Span, Trace
from suite.core.words import override, shell_line

MOST_BYTES = 2**63  # largest memory of a rank
LONGEST = 1e9  # seconds of one batch
MAX_UNPACKED = 64 << 20  # bytes of a trace: a small gzip can hold terabytes


class Aside(StrEnum):
    """Why a file is not used."""

    DAMAGED = "damaged record"
    OTHER_SCHEMA = "other schema version"
    TRACE = "unusable trace"
    ACCURACY = "unreadable errors of the simulator"
    OUTDATED = "outdated record"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A file that is not used. `name` is relative to the reports folder."""

    name: str
    kind: Aside
    reason: str


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The spans of one batch, shifted to start at zero, and the grid they ran on."""

    grid: Grid
    spans: Trace
    file: str


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and its file. machine: folder below measured/; empty for a record made here"""

    record: Record
    file: str
    machine: str = ""
    trace: StoredTrace | None = None


@dataclass(frozen=True, slots=True)
class ReportStore:
    """Contents of a reports folder."""

    folder: Path
    entries: tuple[StoredRecord, ...] = ()
    aside: tuple[SetAside, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(entry.record for entry in self.entries)


def read_store(folder: Path, changed: Callable[[Record], str] = lambda _: "") -> ReportStore:
    """Read `folder`/records/*.json, and `folder`/measured/MACHINE/EXPERIMENT.jsonl with one record per line.

    Outdated records below measured/ are set aside. A missing folder gives an empty store.

    Args:
        folder: The reports folder.
        changed: Returns why the configuration of a record below measured/ is another one today; empty if it is not.
    """
    entries: list[StoredRecord] = []
    aside: list[SetAside] = []
    seen: dict[tuple[str, str], str] = {}
    for name, machine, base, read in candidates(folder):
        try:
            record = _checked(read())
            other = seen.get((machine, record.key))
            refuse([(other, f"key {record.key!r} is taken by {other}", "one file per key")], DamagedRecord)
        except OtherSchema as error:
            aside.append(SetAside(name, Aside.OTHER_SCHEMA, str(error)))
            continue
        except DamagedRecord as error:
            aside.append(SetAside(name, Aside.DAMAGED, str(error)))
            continue
        seen[machine, record.key] = name
        trace = None
        if record.trace is not None:
            try:
                trace = _trace(base, record.trace, folder)
            except DamagedRecord as error:
                aside.append(SetAside(f"{name}: trace {record.trace}", Aside.TRACE, str(error)))
        entries.append(StoredRecord(record, name, machine, trace))
    outdated = _outdated([entry for entry in entries if entry.machine], changed)
    aside += (SetAside(file, Aside.OUTDATED, reason) for file, reason in outdated.items())
    return ReportStore(folder, tuple(entry for entry in entries if entry.file not in outdated), tuple(aside))


def _outdated(committed: Sequence[StoredRecord], changed: Callable[[Record], str]) -> dict[str, str]:
    """Why a committed record decides nothing, by its file. Later code alone is no reason."""
    processors: dict[str, Counter[str]] = {}
    for entry in committed:
        processors.setdefault(entry.machine, Counter())[_processor(entry)] += 1
    reasons = {}
    for entry in committed:
        usual = processors[entry.machine].most_common(1)[0][0]
        if entry.record.source in (Source.SIMULATED, Source.ANALYTIC):
            reason = f"{entry.record.source}; rule: a committed record is measured or emulated, the rest is computed"
        elif at(entry.record.provenance, "commit", "dirty") is True:
            reason = "commit.dirty=true; rule: the code of a committed record is a commit"
        elif _processor(entry) != usual:
            reason = f"processor={_processor(entry)}; rule: the processor of most records in its folder; legal: {usual}"
        else:
            reason = changed(entry.record)
        if reason:
            reasons[entry.file] = reason
    return reasons


def _processor(entry: StoredRecord) -> str:
    return text_at(entry.record.provenance, "machine", "processor")


def check_records(folder: Path) -> Path:
    """Return `folder`. Raises InvalidRequest if it does not exist, is not a readable folder, or holds no record."""
    rule = "a folder with records/ or measured/MACHINE/, as runs leave it"
    legal = f"{shell_line('run', ['system=axonn', override('reports', folder)])} leaves one"
    try:
        for part in (folder, *(place for place in (folder / "records", folder / "measured") if place.exists())):
            next(os.scandir(part), None)
    except OSError as error:
        raise InvalidRequest(f"reports={folder}: {error.strerror}", rule=rule, legal=legal) from error
    if not any(True for _ in candidates(folder)):
        raise InvalidRequest(f"reports={folder} holds no records", rule=rule, legal=legal)
    return folder


def candidates(folder: Path) -> Iterator[tuple[str, str, Path, Callable[[], Record]]]:
    """Each candidate: its name below the folder, its machine, the folder its trace path starts from, and a reader."""
    for path in sorted(folder.glob("records/*.json")):
        yield path.relative_to(folder).as_posix(), "", folder, partial(Record.read, path)
    for path in sorted(folder.glob(f"measured/*/*{LINES}")):
        for line, read in readers(path):
            yield path.relative_to(folder).as_posix() + line, path.parent.name, path.parent, read


def _checked(record: Record) -> Record:
    if fault := _fault(record):
        raise DamagedRecord(fault)
    return record


def _fault(record: Record) -> str:
    """The first optional part of the record with another shape than documented, in words; empty without one."""
    if record.trace is not None and not isinstance(record.trace, str):
        return f"trace is {type(record.trace).__name__}; rule: a path or null"
    if not isinstance(record.memory, dict):
        return "memory is a mapping"
    for side, kinds in record.memory.items():
        if not isinstance(kinds, dict):
            return f"memory.{side} is a mapping of kinds"
        for kind, ranks in kinds.items():
            if not (isinstance(ranks, list) and all(0 <= real(size) <= MOST_BYTES for size in ranks)):
                return f"memory.{side}.{kind} is not a list of bytes per rank, 0 to 2**63; legal: [1024, 2048]"
    return ""


def real(value: Any) -> float:
    """`value` if it is a finite number, otherwise nan. A config or a record may hold any value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def _trace(base: Path, name: str, folder: Path) -> StoredTrace:
    """The trace in `base`/`name`. Raises DamagedRecord for a path outside `base` and for an unreadable file."""
    try:
        path = (base / name).resolve()
        inside = path.is_relative_to(base.resolve()) and path.is_relative_to(folder.resolve())
        rules = [
            (not inside, f"{name!r} leaves the store", "a path inside it", "traces/NAME.json.gz"),
            (not path.is_file(), "no such file", ""),
        ]
        refuse(rules, DamagedRecord)
        with gzip.open(path) as stream:
            raw = stream.read(MAX_UNPACKED + 1)
        refuse([(len(raw) > MAX_UNPACKED, f"over {MAX_UNPACKED} bytes unpacked", "at most that")], DamagedRecord)
        data = json.loads(raw)
        axes = {axis: data["grid"].get(axis, 1) for axis in ("data", "inter", "tensor")}
        whole = all(type(size) is int for size in axes.values())
        refuse([(not whole, f"grid {axes}", "whole numbers")], DamagedRecord)
        grid = Grid(**axes)
        spans = Trace(Span.from_row(row) for row in data["spans"]).shifted()
    except DamagedRecord:
        raise
    except (OSError, EOFError, zlib.error, SuiteError) as error:
        raise DamagedRecord(f"{type(error).__name__}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedRecord(f"not a trace: {type(error).__name__}: {error}") from error
    refuse(_trace_rules(spans, grid), DamagedRecord)
    return StoredTrace(grid, spans, path.relative_to(folder.resolve()).as_posix())


def _trace_rules(spans: Trace, grid: Grid) -> Iterator[Broken]:
    yield not spans, "0 spans", "a trace has at least 1"
    for span in spans:
        yield not 0 <= span.rank < grid.size, f"a span of rank {span.rank}", f"0 to {grid.size - 1} on grid {grid}"
        ordered = math.isfinite(span.start) and math.isfinite(span.end) and span.start <= span.end
        yield not ordered, f"a span from {span.start} to {span.end}", "finite, and no end before its start"
    yield not spans.makespan <= LONGEST, f"{spans.makespan} s from start to end", f"at most {LONGEST:g} s"


def grid_of(record: Record) -> Grid | None:
    """The grid in the record's config; None without one."""
    axes = record.config.get("grid")
    if not isinstance(axes, dict):
        return None
    sizes = {axis: axes.get(axis, 1) for axis in ("data", "inter", "tensor")}
    try:
        return Grid(**sizes) if all(type(size) is int for size in sizes.values()) else None
    except InvalidRequest:
        return None


def at(mapping: Any, *path: str) -> Any:
    """The value at `path` in nested mappings; None if a key is missing or a value on the path is no mapping."""
    for name in path:
        mapping = mapping.get(name) if isinstance(mapping, dict) else None
    return mapping


def text_at(mapping: Any, *path: str) -> str:
    """The text at `path` in nested mappings; empty without one."""
    value = at(mapping, *path)
    return value if isinstance(value, str) else ""
