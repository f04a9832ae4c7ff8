"""Command `suite show`: print one record.

suite show 3f2a                         # by its key, or the beginning of its key
suite show "axonn 2x1" reports=FOLDER   # by its label: the newest record with it
suite show reports/records/KEY.json     # by its file; FILE.jsonl#3 is the record on its third line
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suite.cli import Arguments, argument, command
from suite.cli.result_line import format_result
from suite.core.errors import DamagedRecord, InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record, readers
from suite.core.units import si
from suite.core.words import format_count
from suite.report.load import candidates, check_records

NEWEST = 5  # labels that a refusal lists
MAX_RANKS = 16  # columns of a table of memory


def find(name: str, folder: Path) -> Record:
    """The record of a file, or of a key or label in a folder, or of the beginning of one; the newest one of a label.

    Raises InvalidRequest if no record or several match, and DamagedRecord for a file that holds no record.
    """
    if (path := Path(name.partition("#")[0])).is_file():
        return _read_file(path, name)
    records, damaged = list[Record](), 0
    for *_, read in candidates(check_records(folder)):
        try:
            records.append(read())
        except DamagedRecord:
            damaged += 1
    records.sort(key=lambda record: str(record.provenance.get("started", "")))
    by_name = {record.label: record for record in records} | {record.key: record for record in records}
    begun = {record.key: record for each, record in by_name.items() if name and each.startswith(name)}
    if name in by_name or len(begun) == 1:
        return by_name.get(name) or next(iter(begun.values()))
    newest = [f"{record.label} ({record.key[:12]})" for record in [*begun.values(), *reversed(records)][:NEWEST]]
    count = format_count(records, "record") + (f", next to {damaged} that cannot be read," if damaged else "")
    rule = f"a file, or a key or label of one of the {count} in {folder}"
    raise InvalidRequest(
        "RECORD", name, rule=rule, legal=f"one of {', '.join(newest) or 'those that suite run writes'}"
    )


def _read_file(path: Path, name: str) -> Record:
    """The only record of a file, or the record on the line that `#LINE` selects."""
    by_line = dict(readers(path))
    line = name.removeprefix(str(path)) if len(by_line) > 1 else next(iter(by_line), "")
    if line not in by_line:
        legal = f"{path}{next(iter(by_line), '')}"
        raise InvalidRequest(f"{name}: a file of {len(by_line)} records", rule="one record", legal=legal)
    try:
        return by_line[line]()
    except DamagedRecord as error:
        raise type(error)(f"{name}: {error}") from error


def lines(record: Record) -> Iterator[str]:
    """The content of a record, without empty parts."""
    import pandas as pd
    import yaml

    yield record.label
    if record.outcome is Outcome.OK:
        yield f"result: {format_result(record).strip()}"
    facts = {
        **{"outcome": record.outcome.value, "reason": record.reason, "evidence": record.source.value},
        **{"experiment": record.experiment, "key": record.key},
        **{name: record.provenance.get(name) for name in ("command", "started", "seconds", "calibrated_on")},
        **{"panels": [panel.get("title") for panel in record.panels], "notes": list(record.notes)},
    }
    for name, value in facts.items():
        if value:
            yield f"{name}: {'; '.join(map(str, value)) if isinstance(value, list) else value}"
    if metrics := record.metrics:
        samples = pd.DataFrame({name: pd.Series(metrics[name].values, dtype=float) for name in sorted(metrics)})
        table = samples.describe().T[["50%", "25%", "75%", "count"]]
        table["unit"] = [metrics[name].unit for name in table.index]
        table["note"] = [metrics[name].note for name in table.index]
        yield f"metrics\n{table.to_string(float_format='{:.6g}'.format)}"
    for side, kinds in record.memory.items():
        bytes_by_rank = pd.DataFrame.from_dict(kinds, orient="index")
        bytes_by_rank.loc["all"] = bytes_by_rank.sum()
        sizes = bytes_by_rank.map(lambda size: si(size, "B"))
        yield f"memory, {side}, on each rank or stage\n{sizes.to_string(max_cols=MAX_RANKS)}"
    for name, values in record.series.items():
        if values:
            yield f"series {name}: {values[0]} to {values[-1]}, {format_count(values, 'value')}"
    config = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    yield f"\nconfig\n{config.rstrip()}"


@command(
    "Print one record.",
    "'axonn 2x1'",
    argument("record", metavar="RECORD", help="a record's file, its key or the beginning of one, or a label"),
    keys={"reports": "FOLDER  folder of the record (default: reports)"},
)
def main(arguments: Arguments) -> int:
    """Print the record that the command line names."""
    print("\n".join(lines(find(arguments.record, arguments.reports))))
    return Exit.OK
