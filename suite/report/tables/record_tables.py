"""Tables of records: frames whose cells are text, numbers, or text with details.

Cells hold plain text and a sort value, and no markup, so that markup in a record can only appear as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import pandas as pd

from suite.core.record import LINES, Outcome
from suite.core.units import seconds, si
from suite.report import derive
from suite.report.expectations import Expectation, Judgement
from suite.report.load import SetAside, StoredRecord, text_at
from suite.report.names import NONE, short
from suite.report.plots.figure import KINDS, ordered
from suite.report.tables.provenance_table import took

ROWS = 600  # of a table next to a picture
_JUDGED = {  # sign and tone
    Judgement.MET: ("✓ ", "good"),
    Judgement.NOT_MET: ("✗ ", "bad"),
    Judgement.UNDECIDED: ("? ", "faint"),
    Judgement.NOT_COMPARABLE: ("○ ", "faint"),
}
_KINDS = {
    "ratio": "ratio of median batch times",
    "loss": "largest relative difference of the losses",
    "prediction": "relative difference of the clock to the simulation",
    "share": "share of the median batch time",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than a text or a number.

    Attributes:
        text: The text.
        value: Sort value of the column.
        detail: A second, smaller line.
        tone: good, bad, faint or the name of a badge.
        links: (address, text); without an address the text is no link.
        between: Separator of the links.
        code: Code below the text.
        badge: A badge next to the text.
        fold: Heading under which links, code and lines are folded; empty to show them.
        lines: (term, text) below the text.
    """

    text: str = ""
    value: float | None = None
    detail: str = ""
    tone: str = ""
    links: tuple[tuple[str, str], ...] = ()
    between: str = " · "
    code: str = ""
    badge: str = ""
    fold: str = ""
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the cell holds nothing but a dash."""
        return self.text in ("", NONE) and not (self.detail or self.links or self.code or self.badge or self.lines)


Value = Cell | str | float
Row = Mapping[str, Value]  # of a table, by the names of its columns
DASH = Cell(NONE, tone="faint")


def cell(value: object) -> Cell:
    """A value of a frame as a cell: a number with four digits, and a dash for a missing one."""
    if isinstance(value, Cell):
        return value
    return Cell(value) if isinstance(value, str) else number(float(str(value)), short(float(str(value))))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page.

    Attributes:
        title: Title of the table.
        frame: Texts, numbers and cells. The second line of a column's name is small print.
        anchors: Ids of the rows.
        filters: Filter values of each row, one number per filter.
        kind: Name of a separate style; such a table becomes a list of cards on a narrow screen.
        said: Remark below the table on omitted rows.
    """

    title: str
    frame: pd.DataFrame
    anchors: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    kind: str = ""
    said: str = ""

    @property
    def rows(self) -> list[list[Cell]]:
        return [[cell(value) for value in row] for row in self.frame.itertuples(index=False, name=None)]

    @staticmethod
    def numeric(rows: Iterable[Sequence[Cell]]) -> list[bool]:
        """Whether each column of these `rows` has numbers."""
        return [any(each.value is not None for each in column) for column in zip(*rows, strict=True)]


def tabled(title: str, rows: Iterable[Row], *, said: str = "") -> Table | None:
    """The table of these rows; None without rows."""
    frame = pd.DataFrame(list(rows))
    return None if frame.empty else Table(title, frame, said=said)


def with_values(table: Table | None) -> Table | None:
    """The table without empty columns; None if only the headings of its rows would remain."""
    if table is None or table.kind:
        return table
    filled = [not place or not all(row[place].empty for row in table.rows) for place in range(table.frame.shape[1])]
    return None if sum(filled) == 1 < len(filled) else replace(table, frame=table.frame.loc[:, filled])


def first_rows(table: Table | None) -> Table | None:
    """The table with at most ROWS rows, and a remark on the others."""
    if table is None or len(table.frame) <= ROWS:
        return table
    said = f"{ROWS} of {len(table.frame)} rows are shown. All numbers are in the records."
    return replace(table, frame=table.frame.head(ROWS), said=" ".join(filter(None, (table.said, said))))


def number(value: float, text: str, detail: str = "", tone: str = "", badge: str = "") -> Cell:
    """A numeric cell; a missing number shows as a dash and sorts last."""
    return DASH if math.isnan(value) else Cell(text, value, detail, tone, badge=badge)


def quantity(value: float, unit: str, detail: str = "", tone: str = "", badge: str = "") -> Cell:
    return number(value, si(value, unit), detail, tone, badge)


def percent(value: float, detail: str = "", tone: str = "") -> Cell:
    return number(value, f"{value:.1f} %", detail, tone)


def systems(numbers: pd.DataFrame, reference: str, anchors: Mapping[str, str], quickest: str = "") -> Table | None:
    """Table of the systems of an experiment.

    Args:
        numbers: Numbers of its runs (suite.report.derive.numbers).
        reference: Label of the run whose losses are compared.
        anchors: Anchor of a run by the file of its record.
        quickest: File of the quickest run.
    """
    rows: list[Row] = []
    for _, run in numbers.iterrows():
        time, simulated, tone = run["batch_time_median"], run["simulated_time"], "" if run["comparable"] else "faint"
        lines = [
            f"[{_span(run['batch_time_min'], run['batch_time_max'])}], {run['batch_time_n']}",
            "" if run["comparable"] else "not comparable",
            run["busy"],
            "" if math.isnan(simulated) else f"simulated {si(simulated, 's')} ({100 * (time / simulated - 1):+.1f} %)",
        ]
        recompute, apart = run["flops_per_batch_recompute"], run["loss_difference"]
        ended = "" if run["outcome"] == Outcome.OK else run["outcome"]
        row: Row = {
            "system\nsource": Cell(detail=run["source"], badge=ended, links=to_run(run["label"], run["file"], anchors)),
            "grid\nstages × replicas": run["grid"] or NONE,
            "batch time\nmedian [min … max], samples": quantity(
                time, "s", "\n".join(filter(None, lines)), tone, "quickest" if run["file"] == quickest else ""
            ),
            "tokens/s": quantity(run["tokens_per_second"], "", tone=tone),
            "percent of peak": percent(run["percent_of_peak"], f"of {si(run['peak_flops'], 'flop/s')}", tone),
            "flop per batch\nand with recomputation": quantity(
                run["flops_per_batch"], "flop", "" if math.isnan(recompute) else si(recompute, "flop")
            ),
            "memory\nmeasured; predicted": _both(run["memory_measured_peak"], run["memory_predicted_peak"]),
            "bubble\nshare of the batch": percent(100 * run["bubble_share"]),
            "efficiency\nallowed / measured": percent(100 * run["efficiency"]),
            f"last loss\n{f'difference to {reference}' if reference else 'no reference'}": number(
                run["final_loss"], f"{run['final_loss']:.4g}", "" if math.isnan(apart) else f"{apart:.2g}"
            ),
        }
        rows.append(row)
    return tabled("Systems side by side", rows)


def to_run(label: str, file: str, anchors: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A link from a label to the run's files, command and configuration, as text if the page omits the run."""
    return ((f"#{anchors[file]}" if file in anchors else "", label or NONE),)


def _span(low: float, high: float) -> str:
    """'14 … 17 ms', and both units where they differ."""
    first, last = si(low, "s"), si(high, "s")
    return f"{first.split()[0] if first.split()[-1] == last.split()[-1] else first} … {last}"


def memory(entries: Sequence[StoredRecord], anchors: Mapping[str, str]) -> Table | None:
    """Bytes by kind on the rank with the most, predicted below measured; None if no record has any."""
    sides_by_label = {
        entry.record.label: tuple(derive.memory_by_kind(entry.record, side) for side in ("measured", "predicted"))
        for entry in entries
    }
    sides_by_label = {label: sides for label, sides in sides_by_label.items() if any(sides)}
    if not sides_by_label:
        return None
    files = {entry.record.label: entry.file for entry in entries}
    names = ordered({kind: 0.0 for sides in sides_by_label.values() for side in sides for kind in side}, KINDS)
    rows: list[Row] = []
    for label, sides in sides_by_label.items():
        sums = [sum(side.values()) if side else derive.NAN for side in sides]
        row = {f"{name}\nmeasured; predicted": _both(*(side.get(name, derive.NAN) for side in sides)) for name in names}
        system = Cell(links=to_run(label, files[label], anchors))
        rows.append({"system": system, **row, "sum\nmeasured; predicted": _both(*sums)})
    return tabled("Memory by kind, on the rank that holds most", rows)


def _both(measured: float, predicted: float) -> Cell:
    """A measured size with the predicted one below."""
    below = "" if math.isnan(predicted) else si(predicted, "B")
    if math.isnan(measured):
        return Cell(NONE, None if math.isnan(predicted) else predicted, below, "faint")
    return Cell(si(measured, "B"), measured, below)


def expectations(findings: Sequence[Expectation], runs: Mapping[str, str]) -> Table | None:
    """Table of expectations with our value, target and verdict. runs: anchor of the newest run by label"""
    rows: Iterable[Row] = (
        {
            "expectation": finding.what or NONE,
            "compared": _compared(finding, runs),
            "ours": number(finding.ours, f"{finding.ours:.3g}", _interval(finding)),
            "target": number(finding.target, f"≤ {finding.target:.3g}"),
            "verdict": Cell(f"{sign}{finding.judgement.value}", detail=finding.why, tone=tone),
        }
        for finding in findings
        for sign, tone in [_JUDGED[finding.judgement]]
    )
    return tabled("Expectations and results", rows)


def _interval(finding: Expectation) -> str:
    """The interval of an expected quantity, as text; empty where it has none."""
    return f"[{finding.low:.3g}, {finding.high:.3g}]" if math.isfinite(finding.low + finding.high) else ""


def _compared(finding: Expectation, runs: Mapping[str, str]) -> Cell:
    """The two runs of an expectation, each with a link where it is on the page."""
    links = []
    for name in (finding.system, finding.versus):
        label = name if name in runs else name.rpartition(", the quickest")[0]
        links.append((f"#{runs[label]}" if label in runs else "", name or NONE))
    return Cell(detail=_KINDS.get(finding.kind, finding.kind), links=tuple(links), between=" / ")


def runs(
    entries: Sequence[StoredRecord],
    exports: Mapping[str, str],
    title: str,
    anchors: Mapping[str, str],
    said: str = "",
) -> Table | None:
    """Table of runs with their files and commands. The record of a run has its whole configuration.

    Args:
        entries: The runs.
        exports: Perfetto file by record file.
        title: Title of the table.
        anchors: Anchor of a run by record file.
        said: Remark on omitted runs.
    """
    rows: Iterable[Row] = (
        {
            "run": Cell(entry.record.label, detail=text_at(entry.record.provenance, "started")),
            "files": Cell(links=_links(entry, exports)),
            "took": number(spent := took(entry), seconds(spent) if math.isfinite(spent) else NONE),
            "command": Cell(code=text_at(entry.record.provenance, "command") or "not recorded"),
        }
        for entry in entries
    )
    table = tabled(title, rows, said=said)
    return table and replace(table, anchors=tuple(anchors[entry.file] for entry in entries))


def _links(entry: StoredRecord, exports: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    links = [(address(entry.file), "record")]
    if entry.trace is not None:
        links.append((address(entry.trace.file), "trace"))
    if entry.file in exports:
        links.append((address(exports[entry.file]), "Perfetto"))
    return tuple(links)


def address(file: str) -> str:
    """A link to `file` relative to the page. The prefix './' keeps a file name from being read as a URL scheme."""
    path, ending, line = file.partition(f"{LINES}#")  # of a file with a record per line
    return "./" + quote(path.encode("utf-8", "surrogateescape")) + ending + quote(line)


def set_aside(aside: Sequence[SetAside]) -> Table | None:
    return tabled("Files set aside", ({"file": one.name, "is": one.kind.value, "reason": one.reason} for one in aside))
