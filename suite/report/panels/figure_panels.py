"""Panels of published figures, as records hold them, and the tables that compare them with the paper.

A record of a published figure keeps its curves as series named 'title|unit|x1,x2,...|curve|system', with an optional
sixth part 'quantity=Q;scale=S;evidence=E'. A name that does not follow this, or a list of another length than the
points, is no panel and costs nothing else. Points that a constant was fitted to are marked, and the null model stands
next to every curve. Points named 'GPUs: 64,128' name the x axis. A title that begins with the name of a published
figure or table, 'Figure 8 of SAMO: ...', makes the panel a part of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from suite.core.record import Record
from suite.report import derive
from suite.report.load import StoredRecord, text_at
from suite.report.tables.claim_tables import plain, short
from suite.report.tables.record_tables import NONE, Cell, Column, Table, number, to_run

CURVES = OURS, PAPER, NULL = "ours", "paper", "null"
CALIBRATED, QUICKEST = "calibrated", "quickest"
UNITS = {"s": "seconds", "percent": "percent", "gigabyte": "gigabytes", "day": "days", "count": "", "ratio": "ratios"}
SYMBOLS = {"percent": "%", "gigabyte": "GB", "day": "days", "byte": "bytes", "count": ""}  # of units, on an axis
TIMES = ("s", "day", "hour")
RACES = ("batch time", "epoch time", "time to train")  # quantities of which the least value is the quickest
_DISPLAY = re.compile(r"((?:Figure|Table) \w{1,8}) of ([^:]{1,40}): +(.+)", re.DOTALL)
_LEADING = re.compile(r" (?:of|over|on|by|to|at|from|with|when|that|per|saved)\b|[,(:]")
_MOST_POINTS, _MOST_SYSTEMS, _MOST_FITTED = 64, 12, 40


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """Curves over the same points, by system; nan where there is no value.

    Attributes:
        curves: ours, paper and null, each with the systems that have a value.
        axis: Quantity of the points, empty where the record has none.
        calibrated: (system, index) that a constant was fitted to.
        cut: Whether the record holds more.
        told: The caption, where it differs from the curves' own.
        quantity: What the values are.
        scale: "log" or "log-log" where the paper's figure is drawn so.
        evidence: How our values came about.
    """

    title: str
    unit: str
    axis: str
    x: tuple[str, ...]
    curves: Mapping[str, Mapping[str, tuple[float, ...]]]
    calibrated: frozenset[tuple[str, int]]
    cut: bool
    told: str = ""
    quantity: str = ""
    scale: str = ""
    evidence: str = ""

    @property
    def display(self) -> tuple[str, str]:
        """The published figure or table that it is a part of and its paper, as the page names them; empty: of none."""
        match = _DISPLAY.fullmatch(self.title)
        return (match[1], match[2]) if match else ("", "")

    @property
    def subtitle(self) -> str:
        """The title without the name of the published figure."""
        match = _DISPLAY.fullmatch(self.title)
        return match[3][:1].upper() + match[3][1:] if match else self.title

    @property
    def y_label(self) -> str:
        """'Batch time (s)': the quantity and its unit."""
        quantity = self.quantity or _LEADING.split(self.subtitle, maxsplit=1)[0]
        unit = SYMBOLS.get(self.unit, self.unit)
        return f"{quantity[:1].upper()}{quantity[1:]}" + (f" ({unit})" if unit else "")

    @property
    def x_label(self) -> str:
        return f"{self.axis[:1].upper()}{self.axis[1:]}" or "Point"

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(name for curve in CURVES for name in self.curves[curve]))

    def at(self, curve: str, system: str, index: int) -> float:
        values = self.curves[curve].get(system)
        return values[index] if values else math.nan


@dataclass(frozen=True, slots=True)
class ShownPanel:
    """A panel and what stands next to it.

    Attributes:
        source: The word for ours.
        run: Links to the run that it is of, if it is of one.
        more: A table that is folded away.
        where: The machine on which our values were measured or modelled.
    """

    panel: FigurePanel
    source: str
    run: tuple[tuple[str, str], ...]
    table: Table
    more: Table | None = None
    where: str = ""


def shown(entry: StoredRecord, runs: Mapping[str, str]) -> list[ShownPanel]:
    """The panels of one record with their tables. runs: a run's anchor by its record's file."""
    run = to_run(entry.record.label, entry.file, runs)
    panels = []
    for panel in read(entry.record):
        source = panel.evidence or entry.record.source.value
        beside, all_ours = compared(panel, source), values(panel, source)
        folded = all_ours if beside and rest(panel) else None
        panels.append(ShownPanel(panel, source, run, beside or all_ours, folded, _where(entry, source)))
    return panels


def _where(entry: StoredRecord, source: str) -> str:
    """'on a model of summit', 'on epyc-2-cores'; empty where no machine has a part in the values."""
    if source in ("measured", "emulated"):
        return f"on {entry.machine or 'the machine of this page'}"
    machine = text_at(entry.record.config, "executor", "machine", "name")
    return f"on a model of {machine}" if source == "simulated" and machine else ""


def read(record: Record) -> list[FigurePanel]:
    """The panels of a record, by title. Points and systems beyond what a picture carries are left out."""
    heads: dict[tuple[str, str, str, str], dict[str, dict[str, list[float]]]] = {}
    for key, values in record.series.items():
        parts = key.split("|")
        facts = parts.pop() if len(parts) == 6 and "=" in parts[5] else ""
        if len(parts) == 5 and parts[0].strip() and parts[4].strip():
            title, unit, points, curve, system = parts
            heads.setdefault((title, unit, points, facts), {}).setdefault(curve, {})[system] = values
    drawn = [_panel(*head, curves) for head, curves in heads.items()]
    panels = [panel for panel in drawn if panel.curves[OURS] or panel.curves[PAPER]]
    return sorted(panels, key=lambda panel: derive.natural(panel.title))


def fitted(record: Record) -> list[str]:
    """The record's remark on its fitted constants, at most one."""
    claims = record.provenance.get("calibrated_on")
    names = [name for name in claims if isinstance(name, str)] if isinstance(claims, list) else []
    more = f" and {len(names) - _MOST_FITTED} more" if len(names) > _MOST_FITTED else ""
    return [f"calibrated: constants were fitted to {', '.join(names[:_MOST_FITTED])}{more}"] if names else []


def _panel(
    title: str, unit: str, points: str, facts: str, curves: Mapping[str, Mapping[str, list[float]]]
) -> FigurePanel:
    facts_by_name = dict(fact.split("=", 1) for fact in facts.split(";") if "=" in fact)
    axis, _, names = points.rpartition(": ")
    whole = names.split(",")
    x = tuple(whole[:_MOST_POINTS])
    cut = len(whole) > len(x)
    all_named = all(name.strip() for name in whole)
    values_by_curve: dict[str, dict[str, tuple[float, ...]]] = {}
    for curve in CURVES:
        values_by_curve[curve] = {}
        for system, values in curves.get(curve, {}).items():
            finite = tuple(value if math.isfinite(value) else math.nan for value in values[:_MOST_POINTS])
            if all_named and len(values) == len(whole) and not all(map(math.isnan, finite)):
                values_by_curve[curve][system] = finite
        cut = cut or len(values_by_curve[curve]) > _MOST_SYSTEMS
        values_by_curve[curve] = dict(list(values_by_curve[curve].items())[:_MOST_SYSTEMS])
    systems = {system for curve in CURVES for system in values_by_curve[curve]}
    fitted = {
        (system, int(index))
        for system, indices in curves.get(CALIBRATED, {}).items()
        for index in indices
        if system in systems and 0 <= index < len(x) and index % 1 == 0
    }
    return FigurePanel(
        title,
        unit,
        axis,
        x,
        values_by_curve,
        frozenset(fitted),
        cut,
        quantity=facts_by_name.get("quantity", ""),
        scale=facts_by_name.get("scale", ""),
        evidence=facts_by_name.get("evidence", ""),
    )


def rest(panel: FigurePanel) -> bool:
    """Whether we have values where the paper prints none."""
    return any(
        math.isfinite(panel.at(OURS, system, index)) and math.isnan(panel.at(PAPER, system, index))
        for system in panel.systems
        for index in range(len(panel.x))
    )


def caption(panel: FigurePanel, source: str, where: str = "", *, printed: bool = False) -> str:
    """Caption: unit, evidence, machine, whether the paper prints numbers, and the fitted points. printed: whether
    claims hold other printed numbers of the same figure
    """
    if panel.told:
        return panel.told
    unit = UNITS.get(panel.unit, panel.unit)
    unit = f", in {unit}" if unit else ""
    where = f" {where}" if where else ""
    text = f"Values {source}{where}{unit}."
    if panel.curves[PAPER]:
        text = f"Printed values, and values {source}{where}{unit}."
    elif printed:
        text += " The paper prints none of these values; the claims below hold what it does print."
    elif panel.display[0]:
        text += " The paper draws these curves and prints no number for them."
    else:
        text += " The paper prints none of them."
    fitted = [f"{system} at {panel.x[index]}" for system, index in sorted(panel.calibrated)]
    text += f" Calibrated (diamond): {', '.join(fitted)}." if fitted else ""
    return text + (" The record holds more curves or points than stand here." if panel.cut else "")


def compared(panel: FigurePanel, source: str) -> Table | None:
    """Our value and the null model next to each printed value; None where it prints none."""
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


def values(panel: FigurePanel, source: str) -> Table:
    """All our values, a row per point; the null model's below each."""
    unit = UNITS.get(panel.unit, panel.unit)
    columns = (Column(panel.axis or "point", numeric=False), *(Column(name, detail=unit) for name in panel.systems))
    rows = tuple(
        (Cell(point), *(_own(panel, name, index) for name in panel.systems)) for index, point in enumerate(panel.x)
    )
    return Table(f"{panel.title}: {source} values", columns, rows)


def _own(panel: FigurePanel, system: str, index: int) -> Cell:
    ours, null = panel.at(OURS, system, index), panel.at(NULL, system, index)
    cell = number(ours, short(ours), "" if math.isnan(null) else f"null model {short(null)}")
    words = (_badge(panel, system, index), QUICKEST if system == quickest(panel, index) else "")
    return replace(cell, badge=" ".join(filter(None, words)))


def quickest(panel: FigurePanel, index: int) -> str:
    """The system whose time is the least at a point; empty where values are no times of several systems, or tie."""
    if panel.unit not in TIMES or panel.quantity not in RACES:
        return ""
    times = {name: panel.at(OURS, name, index) for name in panel.curves[OURS]}
    times = {name: value for name, value in times.items() if math.isfinite(value)}
    least = [name for name, value in times.items() if value == min(times.values())]
    return least[0] if len(times) > 1 and len(least) == 1 else ""


def _badge(panel: FigurePanel, system: str, index: int) -> str:
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
