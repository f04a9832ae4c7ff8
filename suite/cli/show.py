"""Print one record so that a person can read it.

suite show 3f2a                       # a record's key, or the beginning of one
suite show "axonn 2x1" reports=FOLDER # or its label: the newest record of that label
suite show reports/records/KEY.json   # or its file
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
from suite.core.record import LINES, Metric, Outcome, Record, readers
from suite.core.units import si
from suite.core.values import Json, typed
from suite.core.words import count
from suite.report.load import check_records
from suite.runner.result_line import format_result
from suite.stats.spread import quartiles

PREFIXED = ("s", "B", "flop", "flop/s", "B/s")  # units that are printed with a decimal prefix
RANKS = 16  # ranks of a table of memory, at most
NEWEST = 5  # labels that a refusal lists
NEEDED = ("paper", "figure")  # keys without which an executor's choice does not compose
NOT_SHOWN = ("reports", "hydra", "experiment", "label")  # keys that say where, or for whom, a run was made


def find(wanted: str, folder: Path) -> Record:
    """The record of a file, or of a key or label in a reports folder. Raises InvalidRequest where none or several are
    meant, DamagedRecord for a file that is no record."""
    if (path := Path(wanted.partition("#")[0])).is_file():
        return _of_file(path, wanted)
    if (path := folder / "records" / f"{wanted}.json").is_file():
        return Record.read(path)
    records = list(_readable(folder))
    matching = [one for one in records if one.key == wanted] or [one for one in records if one.key.startswith(wanted)]
    if matching:
        if len({one.key for one in matching}) > 1:
            raise InvalidRequest(f"{wanted} begins {len(matching)} keys", rule="one record", legal=matching[0].key)
        return matching[0]
    labelled = [one for one in records if one.label == wanted] or [one for one in records if _begins(one, wanted)]
    if len({one.label for one in labelled}) > 1:
        labels = ", ".join(sorted({one.label for one in labelled})[:5])
        raise InvalidRequest(f"{wanted} begins several labels: {labels}", rule="one record", legal=f"{labelled[0].key}")
    if not labelled:
        newest = sorted(records, key=_started, reverse=True)
        known_labels = list(dict.fromkeys(record.label for record in newest))[:NEWEST]
        rule = f"a file, or a key or label of the {count(records, 'record')} in {folder}"
        if known_labels:
            rule += f", the newest of which are {', '.join(known_labels)}"
        raise InvalidRequest(f"there is no record {wanted}", rule=rule, legal=newest[0].key if newest else "")
    return max(labelled, key=_started)


def _of_file(path: Path, wanted: str) -> Record:
    """The only record of a file, or the one on the line that `#LINE` names."""
    records_by_key = dict(readers(path))
    line = wanted.removeprefix(str(path))
    if line not in records_by_key and len(records_by_key) != 1:
        legal = f"{path}{next(iter(records_by_key), '')}"
        raise InvalidRequest(f"{wanted}: a file of {len(records_by_key)} records", rule="one record", legal=legal)
    return (records_by_key[line] if line in records_by_key else next(iter(records_by_key.values())))()


def _readable(folder: Path) -> Iterator[Record]:
    for path in sorted([*folder.glob("records/*.json"), *folder.glob(f"measured/*/*{LINES}")]):
        for _, read in readers(path):
            with suppress(DamagedRecord):
                yield read()


def _begins(record: Record, wanted: str) -> bool:
    return record.label.startswith(wanted)


def _started(record: Record) -> str:
    return str(record.provenance.get("started", ""))


# -- what is printed -------------------------------------------------------------------------------------------------


def lines(record: Record) -> Iterator[str]:
    """A record's parts, one after the other; parts that it has not are left out."""
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
    """Bytes by kind and their sum, a column for each rank."""
    if not kinds:
        return
    totals = [sum(rank) for rank in zip(*kinds.values(), strict=False)]
    for name, ranks in {**kinds, "all": totals}.items():
        sizes = [si(size, "B") for size in ranks[:RANKS]]
        yield f"{name:<14} {'  '.join(f'{text:>8}' for text in sizes)}{'  ...' if len(ranks) > RANKS else ''}"


def series_lines(series: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name, values in series.items():
        if values:
            yield f"{name:<28} {values[0]:.6g} to {values[-1]:.6g}, {len(values)} values"


def changes(config: Mapping[str, Json]) -> list[str]:
    """The choices and keys of a record's config that differ from what an empty command line gives."""
    from suite.config.compose import composed

    choices = dict(_choices(config))
    executor_name = config.get("executor")
    executor = executor_name if isinstance(executor_name, Mapping) else {}
    needed = [f"executor.{key}={executor[key]}" for key in NEEDED if key in executor]
    chosen = [f"{group}={choice}" for group, choice in choices.items()]
    # what a system chooses itself (memory, weights, schedule) is no difference
    usual = dict(_choices(composed([one for one in chosen if one.startswith("system=")])))
    usual["system"] = composed([])["system"]["name"]
    try:
        base = composed([*chosen, *needed])
    except SuiteError:  # a choice that is no longer there, or wants more
        base = composed([])
    differing = [f"{group}={choice}" for group, choice in choices.items() if usual.get(group) != choice]
    before = dict(_flat({key: value for key, value in base.items() if key in config}))
    names = {f"{group}.name" for group in choices}
    after = {key: value for key, value in _flat(config) if key.split(".")[0] not in NOT_SHOWN and key not in names}
    differ = [f"{key}={typed(value)}" for key, value in after.items() if key not in before or before[key] != value]
    return [
        *differing,
        *needed,
        *(one for one in differ if not one.startswith("executor.label=") and one not in needed),
    ]


def _choices(config: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """The choices of config groups that a record names; an executor that simulates holds its own machine and stack."""
    from suite.config.compose import groups

    choices_by_group = groups()
    executor = config.get("executor")
    parts = executor if isinstance(executor, Mapping) else {}
    parts_by_name = {name: parts[name] for name in ("machine", "stack") if name in parts}
    for group, part in {**config, **parts_by_name}.items():
        if isinstance(part, Mapping) and part.get("name") in choices_by_group.get(group, ()) and group not in NOT_SHOWN:
            yield group, str(part["name"])


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Plain values by their keys."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def show(arguments: Arguments) -> int:
    """Print the record that the command line names."""
    check_records(arguments.reports)
    print("\n".join(lines(find(arguments.options.record, arguments.reports))))
    return Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", metavar="RECORD", help="a record's file, its key or the beginning of one, or a label")


COMMAND = Command(
    "show",
    "Print one record: outcome, evidence, metrics, memory, and where its config differs from the defaults.",
    show,
    "'axonn 2x1'",
    keys={"reports": "FOLDER  folder of the record (default: reports)"},
    options=options,
)
main = COMMAND.main
