"""Size limits of the page, which are shared fairly between experiments.

The limits keep the page and its tables below about 15 MB, and the time to write them below about 20 s: a picture takes
30 ms, and a run adds 4 kB. A few hundred runs are shown completely. For more runs, all content is counted before
anything is drawn, and each experiment gets a fair share. Every section lists its omissions. Numbers of omitted runs are
in records.csv.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from suite.core.record import Outcome
from suite.report import derive
from suite.report.load import StoredRecord
from suite.report.tables.record_tables import Table

# on one page
RUNS = 720  # runs in tables and pictures, the newest of each experiment
EARLIER = 160  # superseded records
PICTURES = 200
BOXES = 6000  # boxes of all timelines
ROWS = 5000  # rows of the tables next to panels
GROUPS = 120  # groups of public measurements, in their picture and in their table
LINES = 40  # lines of the reason of a failed run


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """Shown runs of a group.

    Attributes:
        entries: Shown runs.
        earlier: Shown superseded records.
        said: Remark on omitted runs; empty for none.
        said_earlier: Remark on omitted superseded records.
    """

    entries: tuple[StoredRecord, ...]
    earlier: tuple[StoredRecord, ...]
    said: str
    said_earlier: str


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """Split `most` among consumers by max-min fairness. No consumer gets more than it requests; the remainder goes
    to the first ones.
    """
    granted_rows = [0] * len(wanted)
    remaining, open_ = most, [place for place, request in enumerate(wanted) if request > 0]
    while remaining > 0 and open_:
        each = max(1, remaining // len(open_))
        for place in open_[:remaining]:
            granted = min(each, wanted[place] - granted_rows[place])
            granted_rows[place] += granted
            remaining -= granted
        open_ = [place for place in open_ if granted_rows[place] < wanted[place]]
    return granted_rows


def select_shown_runs(groups: Sequence[derive.ExperimentGroup], wanted: Collection[str]) -> list[ShownRuns]:
    """The shown runs of each group: runs whose files are in `wanted`, then the newest."""
    runs = shares([len(group.entries) for group in groups], RUNS)
    earlier = shares([len(group.earlier) for group in groups], EARLIER)
    return [
        ShownRuns(
            shown_entries := _newest(group.entries, most, {*wanted, group.reference.file if group.reference else ""}),
            shown_earlier := _newest(group.earlier, most_earlier, ()),
            _omission_remark(group.entries, shown_entries, "runs"),
            _omission_remark(group.earlier, shown_earlier, "earlier records"),
        )
        for group, most, most_earlier in zip(groups, runs, earlier, strict=True)
    ]


def _newest(entries: Sequence[StoredRecord], most: int, first: Collection[str]) -> tuple[StoredRecord, ...]:
    """At most `most` entries in their order: those in `first`, then the newest."""
    if len(entries) <= most:
        return tuple(entries)
    by_age = sorted(entries, key=lambda entry: (entry.file in first, derive.age(entry)), reverse=True)
    newest = {entry.file for entry in by_age[:most]}
    return tuple(entry for entry in entries if entry.file in newest)


def _omission_remark(entries: Sequence[StoredRecord], shown_entries: Sequence[StoredRecord], noun: str) -> str:
    """Remark on the number and the outcomes of omitted runs."""
    if len(shown_entries) == len(entries):
        return ""
    own_files = {entry.file for entry in shown_entries}
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.file not in own_files:
            outcome = entry.record.outcome.value
            counts[outcome] = counts.get(outcome, 0) + 1
    counts_text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda one: -one[1]))
    return f"{len(shown_entries)} of {len(entries)} {noun} are shown. The others ({counts_text}) are in records.csv."


def cut(tables: Sequence[Table | None], most: int = 0) -> list[Table | None]:
    """The tables with at most `most` rows in total (default ROWS), each with a remark on omitted rows."""
    rows = shares([len(table.rows) if table else 0 for table in tables], most or ROWS)
    return [table and _first(table, count) for table, count in zip(tables, rows, strict=True)]


def _first(table: Table, most: int) -> Table:
    if len(table.rows) <= most:
        return table
    said = (
        f"{most} of {len(table.rows)} rows are shown: a page holds at most {ROWS} rows. All numbers are in the records."
    )
    return replace(table, rows=table.rows[:most], said=" ".join(filter(None, (table.said, said))))


def failures(entries: Sequence[StoredRecord]) -> list[tuple[str, str, str]]:
    """Label, outcome and reason of each failed run."""
    return [
        (entry.record.label, entry.record.outcome.value, reason(entry))
        for entry in entries
        if entry.record.outcome is not Outcome.OK
    ]


def reason(entry: StoredRecord) -> str:
    """Reason of a failed run; a long text is shortened to its first and last lines, with the file of the whole."""
    text = entry.record.reason or "no reason was recorded"
    lines = [line if len(line) <= 400 else f"{line[:400]} …" for line in text.splitlines()]
    if len(lines) > LINES:
        omitted = len(lines) - LINES
        lines[8 : 8 + omitted] = [f"… {omitted} lines more, in {entry.file} …"]
    elif any(line.endswith(" …") for line in lines):
        lines.append(f"… the full text is in {entry.file}")
    return "\n".join(lines)
