"""Match the runs of two sets of records, and name the keys in which similar runs differ.

Runs match if the config that names a record is equal, so a number is compared only with a number of the same
command. Machine, libraries and data must be equal; only the code may differ."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.config.defaults import completed
from suite.core.record import Outcome, Record
from suite.core.values import Json
from suite.regression.compare.record_sets import Sample
from suite.runner.store import key_of

ABSENT = "absent"
_MOST_TEXT = 80  # characters of a value in a message
_CODE = ("source", "executor_source", "own_source")


@dataclass(frozen=True, slots=True)
class Differs:
    """A key that stands in the way of comparing."""

    key: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.key} {self.a} -> {self.b}"


@dataclass(frozen=True, slots=True)
class Name:
    """Of a run, for people."""

    experiment: str
    label: str
    machine: str = ""

    def __str__(self) -> str:
        return " · ".join(filter(None, (self.experiment, self.label, self.machine)))


@dataclass(frozen=True, slots=True)
class Pair:
    """The repeats of one run on both sides.

    Attributes:
        differs: Why they may not be compared; empty where they may.
        spare: Records of the same run that other code made than the newest of their side, left out.
    """

    name: Name
    a: tuple[Sample, ...]
    b: tuple[Sample, ...]
    differs: tuple[Differs, ...] = ()
    spare: int = 0

    @property
    def went_well(self) -> bool:
        """Whether some repeat of each side did."""
        return all(any(s.record.outcome is Outcome.OK for s in side) for side in (self.a, self.b))

    @property
    def config(self) -> str:
        """The differing config keys of B, where labels are equal."""
        return config_key(self.b[0].record)


@dataclass(frozen=True, slots=True)
class Pairs:
    pairs: tuple[Pair, ...]
    only_a: tuple[Name, ...]
    only_b: tuple[Name, ...]


def pair(a: Sequence[Sample], b: Sequence[Sample]) -> Pairs:
    """Runs by config; then what is left of one name, which differs in keys that are named."""
    ours, theirs = _runs(a), _runs(b)
    pairs: list[Pair] = []
    for identity in [identity for identity in ours if identity in theirs]:
        pairs.append(_paired(identity[0], ours.pop(identity), theirs.pop(identity)))
    for identity in list(ours):
        alike = [other for other in theirs if other[0] == identity[0]]
        if alike:
            first = ours[identity][0].record
            near = min(alike, key=lambda other: len(configs(first, theirs[other][0].record)))
            pairs.append(_paired(identity[0], ours.pop(identity), theirs.pop(near)))
    order = {identity[0]: place for place, identity in enumerate(_runs([*a, *b]))}
    pairs.sort(key=lambda one: order[one.name])
    return Pairs(tuple(pairs), tuple(name for name, _ in ours), tuple(name for name, _ in theirs))


def _runs(samples: Sequence[Sample]) -> dict[tuple[Name, str], list[Sample]]:
    samples_by_run: dict[tuple[Name, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        record = sample.record
        name = Name(record.experiment, record.label, sample.machine)
        samples_by_run[name, config_key(record)].append(sample)
    return dict(samples_by_run)


def config_key(record: Record) -> str:
    """Of what decides a run's numbers in its config, which a label does not tell all of."""
    return key_of(_plain(record.config), {})


def _paired(name: Name, a: list[Sample], b: list[Sample]) -> Pair:
    ours, theirs = newest(a), newest(b)
    spare = len(a) + len(b) - len(ours) - len(theirs)
    one, other = ours[0].record, theirs[0].record
    return Pair(name, ours, theirs, (*configs(one, other), *circumstances(one, other)), spare)


def newest(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Repeats with the code and circumstances of the newest one."""

    def of(sample: Sample) -> str:
        provenance = sample.record.provenance
        return repr([*(provenance.get(name) for name in _CODE), sorted(_flat(_facts(sample.record)).items())])

    last = of(max(samples, key=lambda sample: str(sample.record.provenance.get("started", ""))))
    return tuple(sample for sample in samples if of(sample) == last)


def configs(a: Record, b: Record) -> tuple[Differs, ...]:
    """The keys of the config that decide and differ, as dotted names."""
    ours, theirs = _plain(a.config), _plain(b.config)
    our_key = key_of(ours, {})
    if our_key == key_of(theirs, {}):
        return ()
    flat, other = _flat(completed(ours)), _flat(completed(theirs))
    differing_configs = []
    for key in sorted({*flat, *other}):
        if flat.get(key, ABSENT) != other.get(key, ABSENT):
            moved = copy.deepcopy(ours)
            _put(moved, key.split("."), _PROBE)
            if key_of(moved, {}) != our_key:  # decisive, whatever its value
                differing_configs.append(Differs(key, *map(_text, (flat.get(key, ABSENT), other.get(key, ABSENT)))))
    return tuple(differing_configs) or (Differs("config", "one shape", "another"),)


_PROBE = "\0another value"


def circumstances(a: Record, b: Record) -> tuple[Differs, ...]:
    """Keys of machine, libraries and data that differ. A record that tells no machine is comparable with nothing."""
    ours, theirs = _facts(a), _facts(b)
    if not (ours["machine"] and theirs["machine"]):
        return (Differs("machine", *("told" if side["machine"] else ABSENT for side in (ours, theirs))),)
    flat, other = _flat(ours), _flat(theirs)
    return tuple(
        Differs(key, *map(_text, (flat.get(key, ABSENT), other.get(key, ABSENT))))
        for key in sorted({*flat, *other})
        if flat.get(key, ABSENT) != other.get(key, ABSENT)
    )


def _facts(record: Record) -> dict[str, Json]:
    """Of data files name and size: a copy has another time."""
    provenance = record.provenance
    files = provenance.get("data_files") or []
    read_files = [file[:2] if isinstance(file, list) else file for file in files] if isinstance(files, list) else files
    return {
        **{name: provenance.get(name) or {} for name in ("machine", "versions")},
        "split_file": provenance.get("split_file", ABSENT),
        "data_files": read_files,
    }


def _plain(config: Json) -> dict[str, Json]:
    """A config that `key_of` can read, whatever a file from elsewhere holds."""
    plain: dict[str, Json] = dict(config) if isinstance(config, dict) else {}
    for name in ("experiment", "launch", "measure"):
        if not isinstance(plain.get(name, {}), dict):
            plain[name] = {"name": plain[name]}
    return plain


def _flat(data: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    return dict(_leaves(data, prefix))


def _leaves(data: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(data: dict[str, Json], path: Sequence[str], value: Json) -> None:
    """Where a key itself holds a dot, or a value stands for a mapping, the nearest place above."""
    for name in path[:-1]:
        inner = data.get(name)
        if not isinstance(inner, dict):
            inner = data[name] = {}
        data = inner
    data[path[-1]] = value


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
