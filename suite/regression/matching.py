"""Match the runs of two sets of records, and name the keys in which similar runs differ.

Runs match if the config that names a record is equal. Machine, libraries and data must be equal too; only the code may
differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.config.defaults import defaults
from suite.core.record import Outcome, Record
from suite.core.values import Json, leaves
from suite.report.load import StoredRecord
from suite.runner.store import deciding_keys, key_of

ABSENT = "absent"
_MAX_TEXT = 80  # characters of a value in a message
_CODE = ("source", "executor_source", "own_source")


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose values prevent a comparison."""

    key: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.key} {self.a} -> {self.b}"


@dataclass(frozen=True, slots=True)
class RunName:
    """Experiment, label and machine of a run, as people read them."""

    experiment: str
    label: str
    machine: str = ""

    def __str__(self) -> str:
        return f"{self.experiment} · {self.run}"

    @property
    def run(self) -> str:
        """Label and machine."""
        return " · ".join(filter(None, (self.label, self.machine)))


@dataclass(frozen=True, slots=True)
class RunPair:
    """Repeats of one run in both sets.

    Attributes:
        name: Name of the run.
        a: Its repeats in A, made by the newest code of A.
        b: Its repeats in B, made by the newest code of B.
        differences: Keys that prevent a comparison; empty if the sides are comparable.
        older: Number of records that older code made, which are left out.
    """

    name: RunName
    a: tuple[StoredRecord, ...]
    b: tuple[StoredRecord, ...]
    differences: tuple[Difference, ...] = ()
    older: int = 0

    @property
    def both_succeeded(self) -> bool:
        """Whether at least one repeat of each side ended well."""
        return all(any(s.record.outcome is Outcome.OK for s in side) for side in (self.a, self.b))

    @property
    def config(self) -> str:
        """Key of B's config, which distinguishes runs of one label."""
        return config_key(self.b[0].record)


@dataclass(frozen=True, slots=True)
class Matches:
    """Runs that both sets have, and the names of runs that only one set has."""

    pairs: tuple[RunPair, ...]
    only_a: tuple[RunName, ...]
    only_b: tuple[RunName, ...]

    @property
    def comparable(self) -> list[RunPair]:
        """Pairs without differences."""
        return [pair for pair in self.pairs if not pair.differences]


def match_runs(a: Sequence[StoredRecord], b: Sequence[StoredRecord]) -> Matches:
    """Match runs by their config. Remaining runs of one name are paired with the nearest config, with differences."""
    runs_a, runs_b = _runs(a), _runs(b)
    pairs: list[RunPair] = []
    for identity in [identity for identity in runs_a if identity in runs_b]:
        pairs.append(_pair(identity[0], runs_a.pop(identity), runs_b.pop(identity)))
    for identity in list(runs_a):
        same_name = [other for other in runs_b if other[0] == identity[0]]
        if same_name:
            record = runs_a[identity][0].record
            nearest = min(same_name, key=lambda other: len(config_differences(record, runs_b[other][0].record)))
            pairs.append(_pair(identity[0], runs_a.pop(identity), runs_b.pop(nearest)))
    order = {identity[0]: place for place, identity in enumerate(_runs([*a, *b]))}
    pairs.sort(key=lambda pair: order[pair.name])
    return Matches(tuple(pairs), tuple(name for name, _ in runs_a), tuple(name for name, _ in runs_b))


def _runs(samples: Sequence[StoredRecord]) -> dict[tuple[RunName, str], list[StoredRecord]]:
    samples_by_run: dict[tuple[RunName, str], list[StoredRecord]] = defaultdict(list)
    for sample in samples:
        record = sample.record
        name = RunName(record.experiment, record.label, sample.machine)
        samples_by_run[name, config_key(record)].append(sample)
    return dict(samples_by_run)


def config_key(record: Record) -> str:
    """Hash of the config keys that affect a run's numbers, which a label does not hold completely."""
    return key_of(record.config, {})


def _pair(name: RunName, a: list[StoredRecord], b: list[StoredRecord]) -> RunPair:
    newest_a, newest_b = newest(a), newest(b)
    older = len(a) + len(b) - len(newest_a) - len(newest_b)
    records = newest_a[0].record, newest_b[0].record
    return RunPair(name, newest_a, newest_b, (*config_differences(*records), *provenance_differences(*records)), older)


def newest(samples: Sequence[StoredRecord]) -> tuple[StoredRecord, ...]:
    """Repeats with the code, machine, libraries and data of the newest one."""

    def origin(sample: StoredRecord) -> str:
        provenance = sample.record.provenance
        return repr([*(provenance.get(name) for name in _CODE), sorted(leaves(_circumstances(sample.record)))])

    last = origin(max(samples, key=lambda sample: str(sample.record.provenance.get("started", ""))))
    return tuple(sample for sample in samples if origin(sample) == last)


def config_differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """Config keys, as dotted names, that differ and affect a run's numbers."""
    if config_key(a) == config_key(b):
        return ()
    present = dict(leaves(defaults()))  # an absent key has its default
    deciding = (present | dict(leaves(deciding_keys(record.config))) for record in (a, b))
    return tuple(_differences(*deciding)) or (Difference("config", "one shape", "another"),)


def provenance_differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """Keys of machine, libraries and data that differ. A record without a machine is comparable with no other."""
    circumstances = _circumstances(a), _circumstances(b)
    machines = [bool(side["machine"]) for side in circumstances]
    if not all(machines):
        return (Difference("machine", *("recorded" if present else ABSENT for present in machines)),)
    return tuple(_differences(*circumstances))


def _differences(a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterator[Difference]:
    flat_a, flat_b = dict(leaves(a)), dict(leaves(b))
    for key in sorted({*flat_a, *flat_b}):
        values = flat_a.get(key, ABSENT), flat_b.get(key, ABSENT)
        if values[0] != values[1]:
            yield Difference(key, *map(_shortened, values))


def _circumstances(record: Record) -> dict[str, Json]:
    """Machine, libraries and data. Data files count by name and size: a copy has another time."""
    provenance = record.provenance
    files = provenance.get("data_files") or []
    sizes = [file[:2] if isinstance(file, list) else file for file in files] if isinstance(files, list) else files
    return {
        **{name: provenance.get(name) or {} for name in ("machine", "versions")},
        "schedule_file": provenance.get("schedule_file", ABSENT),
        "data_files": sizes,
    }


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
