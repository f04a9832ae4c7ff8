"""Tables of records: columns, headings, and the text of a missing number.

Cells hold plain text and a sort value, and no markup, so that markup in a record can only appear as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from suite.core.record import LINES, Outcome
from suite.core.units import seconds, si
from suite.report import derive
from suite.report.derive import RecordRow
from suite.report.expectations import Expectation, Judgement
from suite.report.load import SetAside, StoredRecord, text_at
from suite.report.names import NONE
from suite.report.plots.figure import KINDS, ordered
from suite.report.tables.provenance_table import took

ROWS = 600  # of a table next to a picture
_SIGNS = {
    Judgement.MET: "✓ ",
    Judgement.NOT_MET: "✗ ",
    Judgement.UNDECIDED: "? ",
    Judgement.NOT_COMPARABLE: "○ ",
}
_TONES = {
    Judgement.MET: "good",
    Judgement.NOT_MET: "bad",
    Judgement.UNDECIDED: "faint",
    Judgement.NOT_COMPARABLE: "faint",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

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

    text: str
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


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    numeric: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, in which the first cell of a row is its heading.

    Attributes:
        title: Title of the table.
        columns: The columns.
        rows: The rows.
        anchors: Id of each row; empty for none.
        filters: Filter values of each row, one number per filter.
        kind: Name of a separate style; such a table becomes a list of cards on a narrow screen.
        said: Remark below the table on omitted rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    anchors: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    kind: str = ""
    said: str = ""


def with_values(table: Table | None) -> Table | None:
    """The table without empty columns; None if only the headings of its rows would remain."""
    if table is None or table.kind:
        return table
    filled = [
        place
        for place in range(len(table.columns))
        if place == 0 or not all(row[place].empty for row in table.rows if place < len(row))
    ]
    if len(filled) == 1 and len(table.columns) > 1:
        return None
    columns = tuple(table.columns[place] for place in filled)
    rows = tuple(tuple(row[place] for place in filled if place < len(row)) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


def first_rows(table: Table | None) -> Table | None:
    """The table with at most ROWS rows, and a remark on the others."""
    if table is None or len(table.rows) <= ROWS:
        return table
    said = f"{ROWS} of {len(table.rows)} rows are shown. All numbers are in the records."
    return replace(table, rows=table.rows[:ROWS], said=" ".join(filter(None, (table.said, said))))


def number(value: float, text: str, detail: str = "", tone: str = "") -> Cell:
    """A numeric cell; a missing number shows as a dash and sorts last."""
    if math.isnan(value):
        return Cell(NONE, tone="faint")
    return Cell(text, value, detail, tone)


def quantity(value: float, unit: str, detail: str = "", tone: str = "") -> Cell:
    return number(value, si(value, unit), detail, tone)


def percent(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f} %"


def systems(rows: Sequence[RecordRow], reference: str, anchors: Mapping[str, str], quickest: str = "") -> Table:
    """Table of the systems of an experiment.

    Args:
        rows: Its runs.
        reference: Label of the run whose losses are compared.
        anchors: Anchor of a run by the file of its record.
        quickest: File of the quickest run.
    """
    columns = (
        Column("system", numeric=False, detail="source"),
        Column("grid", numeric=False, detail="stages × replicas"),
        Column("batch time", detail="median [min … max], samples"),
        Column("tokens/s"),
        Column("percent of peak"),
        Column("flop per batch", detail="and with recomputation"),
        Column("memory", detail="measured; predicted"),
        Column("bubble", detail="share of the batch"),
        Column("efficiency", detail="allowed / measured"),
        Column("last loss", detail=f"difference to {reference}" if reference else "no reference"),
    )
    return Table("Systems side by side", columns, tuple(_system(row, anchors, row.file == quickest) for row in rows))


def to_run(label: str, file: str, anchors: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A link from a label to the run's files, command and configuration, as text if the page omits the run."""
    return ((f"#{anchors[file]}" if file in anchors else "", label or NONE),)


def _system(row: RecordRow, anchors: Mapping[str, str], quickest: bool) -> tuple[Cell, ...]:
    time, tone = row.batch_time_median, "" if row.comparable else "faint"
    spread = f"[{_span(row.batch_time_min, row.batch_time_max)}], {row.batch_time_n}"
    if not row.comparable:
        spread += "\nnot comparable"
    spread += f"\n{row.busy}" if row.busy else ""
    if not math.isnan(row.simulated_time):
        spread += f"\nsimulated {si(row.simulated_time, 's')} ({100 * (time / row.simulated_time - 1):+.1f} %)"
    apart = "" if math.isnan(row.loss_difference) else f"{row.loss_difference:.2g}"
    recompute = row.flops_per_batch_recompute
    return (
        Cell(
            "",
            detail=row.source,
            badge="" if row.outcome == Outcome.OK else row.outcome,
            links=to_run(row.label, row.file, anchors),
        ),
        Cell(row.grid or NONE),
        replace(quantity(time, "s", spread, tone), badge="quickest" if quickest else ""),
        quantity(row.tokens_per_second, "", tone=tone),
        number(
            row.percent_of_peak,
            percent(row.percent_of_peak),
            f"of {si(row.peak_flops, 'flop/s')}",
            tone,
        ),
        quantity(row.flops_per_batch, "flop", "" if math.isnan(recompute) else si(recompute, "flop")),
        _both(row.memory_measured_peak, row.memory_predicted_peak),
        number(row.bubble_share, percent(100 * row.bubble_share)),
        number(row.efficiency, percent(100 * row.efficiency)),
        number(row.final_loss, f"{row.final_loss:.4g}", apart),
    )


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
    names = list(ordered({kind: 0.0 for sides in sides_by_label.values() for side in sides for kind in side}, KINDS))
    columns = (
        Column("system", numeric=False),
        *(Column(name, detail="measured; predicted") for name in names),
        Column("sum", detail="measured; predicted"),
    )
    rows = tuple(
        (
            Cell("", links=to_run(label, files[label], anchors)),
            *(_both(measured.get(name, derive.NAN), predicted.get(name, derive.NAN)) for name in names),
            _both(
                sum(measured.values()) if measured else derive.NAN, sum(predicted.values()) if predicted else derive.NAN
            ),
        )
        for label, (measured, predicted) in sides_by_label.items()
    )
    return Table("Memory by kind, on the rank that holds most", columns, rows)


def _both(measured: float, predicted: float) -> Cell:
    """A measured size with the predicted one below."""
    below = "" if math.isnan(predicted) else si(predicted, "B")
    return Cell(NONE, None, below, "faint") if math.isnan(measured) else Cell(si(measured, "B"), measured, below)


def expectations(findings: Sequence[Expectation], runs: Mapping[str, str]) -> Table | None:
    """Table of expectations with our value, target and verdict. runs: anchor of the newest run by label"""
    columns = (
        Column("expectation", numeric=False),
        Column("compared", numeric=False),
        Column("ours"),
        Column("target"),
        Column("verdict", numeric=False),
    )
    rows = tuple(
        (
            Cell(finding.what or NONE),
            _compared(finding, runs),
            number(finding.ours, f"{finding.ours:.3g}", _interval(finding)),
            number(finding.target, f"≤ {finding.target:.3g}"),
            Cell(
                _SIGNS[finding.judgement] + finding.judgement.value,
                detail=finding.why,
                tone=_TONES[finding.judgement],
            ),
        )
        for finding in findings
    )
    return Table("Expectations and results", columns, rows) if rows else None


def _interval(finding: Expectation) -> str:
    """The interval of an expected quantity, as text; empty where it has none."""
    return f"[{finding.low:.3g}, {finding.high:.3g}]" if math.isfinite(finding.low + finding.high) else ""


def _compared(finding: Expectation, runs: Mapping[str, str]) -> Cell:
    """The two runs of an expectation, each with a link where it is on the page."""
    links = []
    for name in (finding.system, finding.versus):
        label = name if name in runs else name.rpartition(", the quickest")[0]
        links.append((f"#{runs[label]}" if label in runs else "", name or NONE))
    return Cell("", detail=_kind(finding.kind), links=tuple(links), between=" / ")


def _kind(kind: str) -> str:
    words = {
        "ratio": "ratio of median batch times",
        "loss": "largest relative difference of the losses",
        "prediction": "relative difference of the clock to the simulation",
        "share": "share of the median batch time",
    }
    return words.get(kind, kind)


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
    columns = (
        Column("run", numeric=False),
        Column("files", numeric=False),
        Column("took"),
        Column("command", numeric=False),
    )
    rows = tuple(
        (
            Cell(entry.record.label, detail=text_at(entry.record.provenance, "started")),
            Cell("", links=_links(entry, exports)),
            number(spent := took(entry), seconds(spent) if math.isfinite(spent) else NONE),
            Cell("", code=text_at(entry.record.provenance, "command") or "not recorded"),
        )
        for entry in entries
    )
    return Table(title, columns, rows, tuple(anchors[entry.file] for entry in entries), said=said) if rows else None


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
    columns = (
        Column("file", numeric=False),
        Column("is", numeric=False),
        Column("reason", numeric=False),
    )
    rows = tuple((Cell(entry.name), Cell(entry.kind.value), Cell(entry.reason)) for entry in aside)
    return Table("Files set aside", columns, rows) if rows else None
