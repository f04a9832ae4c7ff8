"""Decides which of a record's series are panels of a published figure, and the tables that put the paper beside ours.

A record of a published figure keeps its curves as series named 'title|unit|x1,x2,...|curve|system'. A name that does
not follow this, or a list of another length than the points, is no panel and costs nothing else. What a constant was
fitted to is marked, and the null model stands beside everything, so that agreement can be weighed. The record does not
say what the points count; where they are named 'GPUs: 64,128', that becomes the axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from suite.core.record import Record
from suite.report import derive
from suite.report.load import Entry
from suite.report.verdicts import plain, short
from suite.report.view import NONE, Cell, Column, Table, number, to_run

CURVES = OURS, PAPER, NULL = "ours", "paper", "null"
CALIBRATED = "calibrated"
UNITS = {"s": "seconds", "percent": "percent", "gigabyte": "gigabytes", "day": "days"}
_MOST_POINTS, _MOST_SYSTEMS, _MOST_FITTED = 64, 12, 40


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over the same points, by system; nan where there is no value.

    curves: ours, paper and null, each with the systems that have a value; axis: what the points count, empty where the
    record does not say; calibrated: (system, index) that a constant was fitted to; cut: whether the record holds more
    told: the caption, where it is not the one that the curves tell
    """

    title: str
    unit: str
    axis: str
    x: tuple[str, ...]
    curves: Mapping[str, Mapping[str, tuple[float, ...]]]
    calibrated: frozenset[tuple[str, int]]
    cut: bool
    told: str = ""

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(name for curve in CURVES for name in self.curves[curve]))

    def at(self, curve: str, system: str, index: int) -> float:
        values = self.curves[curve].get(system)
        return values[index] if values else math.nan


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel and what stands beside it. source: the word for ours; run: links to the run that it is of, if it is of
    one; more: a table that is folded away"""

    panel: Panel
    source: str
    run: tuple[tuple[str, str], ...]
    table: Table
    more: Table | None = None


def shown(entry: Entry, runs: Mapping[str, str]) -> list[Shown]:
    """The panels of one record with their tables. runs: a run's anchor by its record's file."""
    source, run = entry.record.source.value, to_run(entry.record.label, entry.file, runs)
    found = []
    for panel in read(entry.record):
        beside, all_ours = compared(panel, source), values(panel, source)
        folded = all_ours if beside and rest(panel) else None
        found.append(Shown(panel, source, run, beside or all_ours, folded))
    return found


def read(record: Record) -> list[Panel]:
    """The panels of a record, by title. Points and systems beyond what a picture carries are left out."""
    heads: dict[tuple[str, str, str], dict[str, dict[str, list[float]]]] = {}
    for key, values in record.series.items():
        parts = key.split("|")
        if len(parts) == 5 and parts[0].strip() and parts[4].strip():
            title, unit, points, curve, system = parts
            heads.setdefault((title, unit, points), {}).setdefault(curve, {})[system] = values
    found = [_panel(*head, curves) for head, curves in heads.items()]
    panels = [panel for panel in found if panel.curves[OURS] or panel.curves[PAPER]]
    return sorted(panels, key=lambda panel: derive.natural(panel.title))


def fitted(record: Record) -> list[str]:
    """What the record says that its constants were fitted to, as one remark at most."""
    claims = record.provenance.get("calibrated_on")
    names = [name for name in claims if isinstance(name, str)] if isinstance(claims, list) else []
    more = f" and {len(names) - _MOST_FITTED} more" if len(names) > _MOST_FITTED else ""
    return [f"calibrated: constants were fitted to {', '.join(names[:_MOST_FITTED])}{more}"] if names else []


def _panel(title: str, unit: str, points: str, curves: Mapping[str, Mapping[str, list[float]]]) -> Panel:
    axis, _, names = points.rpartition(": ")
    whole = names.split(",")
    x = tuple(whole[:_MOST_POINTS])
    cut = len(whole) > len(x)
    named = all(name.strip() for name in whole)
    known: dict[str, dict[str, tuple[float, ...]]] = {}
    for curve in CURVES:
        known[curve] = {}
        for system, values in curves.get(curve, {}).items():
            finite = tuple(value if math.isfinite(value) else math.nan for value in values[:_MOST_POINTS])
            if named and len(values) == len(whole) and not all(map(math.isnan, finite)):
                known[curve][system] = finite
        cut = cut or len(known[curve]) > _MOST_SYSTEMS
        known[curve] = dict(list(known[curve].items())[:_MOST_SYSTEMS])
    held = {system for curve in CURVES for system in known[curve]}
    fitted = {
        (system, int(index))
        for system, indices in curves.get(CALIBRATED, {}).items()
        for index in indices
        if system in held and 0 <= index < len(x) and index % 1 == 0
    }
    return Panel(title, unit, axis, x, known, frozenset(fitted), cut)


def rest(panel: Panel) -> bool:
    """Whether we have values where the paper prints none."""
    return any(
        math.isfinite(panel.at(OURS, system, index)) and math.isnan(panel.at(PAPER, system, index))
        for system in panel.systems
        for index in range(len(panel.x))
    )


def caption(panel: Panel, source: str) -> str:
    """What is drawn, in words: the unit, whether the paper prints numbers, and which points are calibrated."""
    if panel.told:
        return panel.told
    unit = f", in {UNITS.get(panel.unit, panel.unit)}" if panel.unit else ""
    if panel.curves[PAPER]:
        text = f"Printed and {source} values{unit}."
    else:
        text = f"{source.capitalize()} values{unit}; the paper prints no number for any of them."
    fitted = [f"{system} at {panel.x[index]}" for system, index in sorted(panel.calibrated)]
    text += f" Calibrated (diamond): {', '.join(fitted)}." if fitted else ""
    return text + (" The record holds more curves or points than stand here." if panel.cut else "")


def compared(panel: Panel, source: str) -> Table | None:
    """Ours and the null model beside each value that the paper prints; None where it prints none."""
    unit = UNITS.get(panel.unit, panel.unit)
    null, both = bool(panel.curves[NULL]), "and points (pt)" if panel.unit == "percent" else ""
    columns = (
        Column("curve", numeric=False),
        Column(panel.axis or "point", numeric=False),
        Column("paper", detail=unit),
        Column(source, detail=unit),
        Column("error", detail=both),
        *((Column("null model", detail=unit), Column("its error", detail=both)) if null else ()),
    )
    rows = []
    for system in panel.systems:
        for index, point in enumerate(panel.x):
            paper, ours, other = (panel.at(curve, system, index) for curve in (PAPER, OURS, NULL))
            if math.isnan(paper):
                continue
            row = (
                Cell(system),
                Cell(point, badge=_badge(panel, system, index)),
                number(paper, plain(paper)),
                number(ours, short(ours)),
                error(ours, paper, panel.unit),
            )
            rows.append((*row, number(other, short(other)), error(other, paper, panel.unit)) if null else row)
    return Table(f"{panel.title}: the paper beside ours", columns, tuple(rows)) if rows else None


def values(panel: Panel, source: str) -> Table:
    """All our values, a row per point; the null model's below each."""
    unit = UNITS.get(panel.unit, panel.unit)
    columns = (Column(panel.axis or "point", numeric=False), *(Column(name, detail=unit) for name in panel.systems))
    rows = tuple(
        (Cell(point), *(_own(panel, name, index) for name in panel.systems)) for index, point in enumerate(panel.x)
    )
    return Table(f"{panel.title}: {source} values", columns, rows)


def _own(panel: Panel, system: str, index: int) -> Cell:
    ours, null = panel.at(OURS, system, index), panel.at(NULL, system, index)
    cell = number(ours, short(ours), "" if math.isnan(null) else f"null model {short(null)}")
    return replace(cell, badge=_badge(panel, system, index))


def _badge(panel: Panel, system: str, index: int) -> str:
    return CALIBRATED if (system, index) in panel.calibrated else ""


def error(ours: float, paper: float, unit: str) -> Cell:
    """ours / paper - 1 in percent; where the unit is percent, the difference in points below."""
    relative = 100 * derive.ratio(ours - paper, abs(paper))
    points = f"{_signed(ours - paper)} pt" if unit == "percent" and math.isfinite(ours - paper) else ""
    if not math.isfinite(relative):
        return Cell(NONE, detail=points, tone="faint")
    return Cell(f"{_signed(relative)} %", relative, points)


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}" if abs(value) < 1e4 else f"{value:+.2g}"
