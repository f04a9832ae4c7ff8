"""Command `suite show`: print one record.

suite show 3f2a                         # by its key, or the beginning of its key
suite show "axonn 2x1" reports=FOLDER   # by its label: the newest record with it
suite show reports/records/KEY.json     # by its file
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from suite.cli import Arguments, Command
from suite.core.errors import DamagedRecord, InvalidRequest, SuiteError
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Record, readers
from suite.core.units import si
from suite.core.values import Json, format_typed, leaves
from suite.core.words import format_count
from suite.report.load import candidates, check_records
from suite.runner.result_line import format_result
from suite.stats.spread import quartiles

PREFIXED = ("s", "B", "flop", "flop/s", "B/s")  # units that are printed with a decimal prefix
MAX_RANKS = 16  # columns of a table of memory
NEWEST = 5  # labels that a refusal lists
REQUIRED = ("paper", "figure")  # keys that an executor requires to compose
NOT_SHOWN = ("reports", "experiment", "label")  # keys that do not affect the measurement


def find(name: str, folder: Path) -> Record:
    """The record of a file, or of a key or label in a reports folder.

    Raises InvalidRequest if no record or several match, and DamagedRecord for a file that holds no record.
    """
    if (path := Path(name.partition("#")[0])).is_file():
        return _read_file(path, name)
    check_records(folder)
    if (path := folder / "records" / f"{name}.json").is_file():
        return _read_file(path, str(path))
    records = list(_readable(folder))
    by_key = [record for record in records if record.key == name]
    by_key = by_key or [record for record in records if record.key.startswith(name)]
    if by_key:
        if len({record.key for record in by_key}) > 1:
            raise InvalidRequest(f"{name} begins {len(by_key)} keys", rule="one record", legal=by_key[0].key)
        return by_key[0]
    labelled = [record for record in records if record.label == name]
    labelled = labelled or [record for record in records if record.label.startswith(name)]
    if len({record.label for record in labelled}) > 1:
        labels = ", ".join(sorted({record.label for record in labelled})[:5])
        raise InvalidRequest(f"{name} begins several labels: {labels}", rule="one record", legal=f"{labelled[0].key}")
    if not labelled:
        newest = sorted(records, key=_started, reverse=True)
        known_labels = list(dict.fromkeys(record.label for record in newest))[:NEWEST]
        rule = f"a file, or a key or label of the {format_count(records, 'record')} in {folder}"
        if known_labels:
            rule += f", the newest of which are {', '.join(known_labels)}"
        raise InvalidRequest(f"there is no record {name}", rule=rule, legal=newest[0].key if newest else "")
    return max(labelled, key=_started)


def _read_file(path: Path, name: str) -> Record:
    """The only record of a file, or the record on the line that `#LINE` selects."""
    readers_by_line = dict(readers(path))
    line = name.removeprefix(str(path))
    if line not in readers_by_line and len(readers_by_line) != 1:
        legal = f"{path}{next(iter(readers_by_line), '')}"
        raise InvalidRequest(f"{name}: a file of {len(readers_by_line)} records", rule="one record", legal=legal)
    try:
        return (readers_by_line[line] if line in readers_by_line else next(iter(readers_by_line.values())))()
    except DamagedRecord as error:
        raise type(error)(f"{name}: {error}") from error


def _readable(folder: Path) -> Iterator[Record]:
    for *_, read in candidates(folder):
        with suppress(DamagedRecord):
            yield read()


def _started(record: Record) -> str:
    return str(record.provenance.get("started", ""))


# -- output ----------------------------------------------------------------------------------------------------------


def lines(record: Record) -> Iterator[str]:
    """The lines of a record. Empty parts are left out."""
    yield record.label
    yield f"  outcome     {record.outcome.value}"
    if record.outcome is Outcome.OK:
        yield f"  result      {format_result(record).strip()}"
    if record.reason:
        yield from _indented("  reason      ", record.reason.splitlines())
    yield f"  evidence    {record.source.value}"
    yield f"  experiment  {record.experiment}"
    yield f"  key         {record.key}"
    for name in ("command", "started", "seconds", "calibrated_on"):
        if value := record.provenance.get(name):
            yield f"  {name:<11} {', '.join(map(str, value)) if isinstance(value, list) else value}"
    yield from _part("config, where it differs from the defaults", changes(record.config))
    yield from _part("metrics: median, quartiles and number of samples", map(metric_line, *_items(record.metrics)))
    for side, kinds in record.memory.items():
        yield from _part(f"memory, {side}, on each rank or stage", memory_lines(kinds))
    yield from _part("series: first, last and number of values", series_lines(record.series))
    yield from _part("panels of a published figure", [str(panel.get("title")) for panel in record.panels])
    yield from _part("notes and plan", record.notes)


def _items(metrics: Mapping[str, Metric]) -> tuple[Sequence[str], Sequence[Metric]]:
    names = sorted(metrics)
    return names, [metrics[name] for name in names]


def _indented(head: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield f"{head if number == 0 else ' ' * len(head)}{text}"


def _part(title: str, texts: Any) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number == 0:
            yield title
        yield f"  {text}"


def amount(value: float, unit: str) -> str:
    """A number with its unit."""
    if unit in PREFIXED or not math.isfinite(value):
        return si(value, unit)
    return f"{value:,.10g} {unit}".strip() if float(value).is_integer() else f"{value:.4g} {unit}".strip()


def metric_line(name: str, metric: Metric) -> str:
    values = [value for value in metric.values if math.isfinite(value)]
    text = amount(median(values), metric.unit) if values else "no samples"
    if len(values) > 1:
        low, _, high = quartiles(values)
        text += f", {amount(low, metric.unit)} to {amount(high, metric.unit)}, {len(values)} samples"
    return f"{name:<28} {text}{f' ({metric.note})' if metric.note else ''}"


def memory_lines(kinds: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Bytes by kind and their sum, with a column per rank."""
    if not kinds:
        return
    totals = [sum(rank) for rank in zip(*kinds.values(), strict=False)]
    for name, ranks in {**kinds, "all": totals}.items():
        sizes = [si(size, "B") for size in ranks[:MAX_RANKS]]
        yield f"{name:<14} {'  '.join(f'{text:>8}' for text in sizes)}{'  ...' if len(ranks) > MAX_RANKS else ''}"


def series_lines(series: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name, values in series.items():
        if values:
            yield f"{name:<28} {values[0]:.6g} to {values[-1]:.6g}, {len(values)} values"


def changes(config: Mapping[str, Json]) -> list[str]:
    """Choices and keys of a record's configuration that differ from the defaults."""
    from suite.config.compose import composed

    choices = dict(_choices(config))
    executor_name = config.get("executor")
    executor = executor_name if isinstance(executor_name, Mapping) else {}
    required = [f"executor.{key}={executor[key]}" for key in REQUIRED if key in executor]
    chosen = [f"{group}={choice}" for group, choice in choices.items()]
    # choices of the system itself (memory, weights, schedule) are no difference
    usual = dict(_choices(composed([choice for choice in chosen if choice.startswith("system=")])))
    usual["system"] = composed([])["system"]["name"]
    try:
        base = composed([*chosen, *required])
    except SuiteError:  # a choice that no longer exists, or requires further keys
        base = composed([])
    differing = [f"{group}={choice}" for group, choice in choices.items() if usual.get(group) != choice]
    before = dict(leaves({key: value for key, value in base.items() if key in config}))
    names = {f"{group}.name" for group in choices}
    after = {key: value for key, value in leaves(config) if key.split(".")[0] not in NOT_SHOWN and key not in names}
    differ = [
        f"{key}={format_typed(value)}" for key, value in after.items() if key not in before or before[key] != value
    ]
    return [
        *differing,
        *required,
        *(o for o in differ if not o.startswith("executor.label=") and o not in required),
    ]


def _choices(config: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """The choices of config groups that a record names; a simulating executor holds its own machine and efficiency."""
    from suite.config.compose import groups

    choices_by_group = groups()
    executor = config.get("executor")
    parts = executor if isinstance(executor, Mapping) else {}
    parts_by_name = {name: parts[name] for name in ("machine", "efficiency") if name in parts}
    for group, part in {**config, **parts_by_name}.items():
        if isinstance(part, Mapping) and part.get("name") in choices_by_group.get(group, ()) and group not in NOT_SHOWN:
            yield group, str(part["name"])


def show(arguments: Arguments) -> int:
    """Print the record that the command line names."""
    print("\n".join(lines(find(arguments.options.record, arguments.reports))))
    return Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", metavar="RECORD", help="a record's file, its key or the beginning of one, or a label")


COMMAND = Command(
    "show",
    "Print one record, with the keys that differ from the defaults.",
    show,
    "'axonn 2x1'",
    keys={"reports": "FOLDER  folder of the record (default: reports)"},
    options=options,
)
main = COMMAND.main
