"""Size limits of the page: everything for a few hundred runs, a fair share of each experiment for several thousand.

A browser scrolls fifteen megabytes, and a reader waits twenty seconds; a picture takes 30 ms and a run 4 kB. All
content is counted first and shared out, so that the same records give the same page, no section starves next to a
large one, and every section lists its omissions. The tables of numbers that are left out are in records.csv."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from suite.core.record import Outcome
from suite.report import derive
from suite.report.load import StoredRecord
from suite.report.tables.record_tables import Table

# on one page
RUNS = 1200  # that stand in tables and pictures, the newest of each experiment
EARLIER = 240  # records that a newer one supersedes
PICTURES = 240
BOXES = 8000  # of all pictures of one batch in time
ROWS = 5000  # of the tables next to panels
LINES = 40  # of the reason of a run that did not end well


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """The runs of a group that the page shows, and what it says of the others. said: empty where there are none"""

    entries: tuple[StoredRecord, ...]
    earlier: tuple[StoredRecord, ...]
    said: str
    said_earlier: str


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """Split `most` among consumers by max-min fairness. No consumer gets more than it requests; the remainder goes
    to the first ones.
    """
    got = [0] * len(wanted)
    remaining, open_ = most, [place for place, wish in enumerate(wanted) if wish > 0]
    while remaining > 0 and open_:
        each = max(1, remaining // len(open_))
        for place in open_[:remaining]:
            granted = min(each, wanted[place] - got[place])
            got[place] += granted
            remaining -= granted
        open_ = [place for place in open_ if got[place] < wanted[place]]
    return got


def shown(groups: Sequence[derive.ExperimentGroup], wanted: Collection[str]) -> list[ShownRuns]:
    """The runs of each group that the page shows: those whose files are `wanted`, then the newest."""
    runs = shares([len(group.entries) for group in groups], RUNS)
    earlier = shares([len(group.earlier) for group in groups], EARLIER)
    return [
        ShownRuns(
            mine := _newest(group.entries, most, {*wanted, group.reference.file if group.reference else ""}),
            old := _newest(group.earlier, most_earlier, ()),
            _said(group.entries, mine, "runs"),
            _said(group.earlier, old, "earlier records"),
        )
        for group, most, most_earlier in zip(groups, runs, earlier, strict=True)
    ]


def _newest(entries: Sequence[StoredRecord], most: int, first: Collection[str]) -> tuple[StoredRecord, ...]:
    """So many of the entries, in their order."""
    if len(entries) <= most:
        return tuple(entries)
    by_age = sorted(entries, key=lambda entry: (entry.file in first, derive.age(entry)), reverse=True)
    newest = {entry.file for entry in by_age[:most]}
    return tuple(entry for entry in entries if entry.file in newest)


def _said(entries: Sequence[StoredRecord], mine: Sequence[StoredRecord], what: str) -> str:
    """How many are not shown, and how they ended."""
    if len(mine) == len(entries):
        return ""
    own_files = {entry.file for entry in mine}
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.file not in own_files:
            outcome = entry.record.outcome.value
            counts[outcome] = counts.get(outcome, 0) + 1
    counts_text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda one: -one[1]))
    return f"{len(mine)} of {len(entries)} {what} stand here. The others ({counts_text}) are in records.csv."


def cut(tables: Sequence[Table | None], most: int = 0) -> list[Table | None]:
    """Tables of at most so many rows together (ROWS unless told), each with a word on what it leaves out."""
    rows = shares([len(table.rows) if table else 0 for table in tables], most or ROWS)
    return [table and _first(table, count) for table, count in zip(tables, rows, strict=True)]


def _first(table: Table, most: int) -> Table:
    if len(table.rows) <= most:
        return table
    said = f"{most} of {len(table.rows)} rows stand here: one page carries {ROWS}. All numbers are in the records."
    return replace(table, rows=table.rows[:most], said=" ".join(filter(None, (table.said, said))))


def failures(entries: Sequence[StoredRecord]) -> list[tuple[str, str, str]]:
    """Label, outcome and reason of the runs that did not end well."""
    return [
        (entry.record.label, entry.record.outcome.value, reason(entry))
        for entry in entries
        if entry.record.outcome is not Outcome.OK
    ]


def reason(entry: StoredRecord) -> str:
    """Why a run did not end well: of a long text its first and last lines, with the file that has the whole."""
    text = entry.record.reason or "no reason was recorded"
    lines = [line if len(line) <= 400 else f"{line[:400]} …" for line in text.splitlines()]
    if len(lines) > LINES:
        omitted = len(lines) - LINES
        lines[8 : 8 + omitted] = [f"… {omitted} lines more, in {entry.file} …"]
    elif any(line.endswith(" …") for line in lines):
        lines.append(f"… the whole stands in {entry.file}")
    return "\n".join(lines)
