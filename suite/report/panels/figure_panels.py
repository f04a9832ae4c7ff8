"""Panels of published figures from records, and the tables that compare them with the paper.

Records hold these panels under `panels` (suite.config.panels). A malformed panel only causes a remark on the page.
Points to which a constant was fitted are marked, and the values of the null model are drawn next to ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from suite.claims import load
from suite.claims.panel import bound, published
from suite.config.panels import FigurePanel, is_map
from suite.core.errors import InvalidRequest
from suite.core.record import Record
from suite.report import derive
from suite.report.load import StoredRecord, text_at
from suite.report.names import NONE, SYMBOLS, plain, short
from suite.report.tables.record_tables import DASH, Cell, Row, Table, number, tabled, to_run

CURVES = OURS, PAPER, NULL = "ours", "paper", "null"
CALIBRATED, QUICKEST = "calibrated", "quickest"
UNITS = {"s": "seconds", "percent": "percent", "gigabyte": "gigabytes", "day": "days", "count": "", "ratio": "ratios"}
TIMES = ("s", "day", "hour")
RACES = ("batch time", "epoch time", "time to train")  # quantities whose smallest value is the best
_LEADING = re.compile(r" (?:of|over|on|by|to|at|from|with|when|that|per|saved)\b|[,(:]")
BOUNDS = {0: "", 1: "at least ", -1: "at most "}
_MOST_POINTS, _MOST_SYSTEMS, _MOST_FITTED = 64, 12, 40


class PlottedPanel(FigurePanel):
    """A panel as it is drawn, within the limits of a picture. `paper` holds the printed values of claims, too.

    Attributes:
        bounds: Printed points that are bounds: 1 for a lower one, -1 for an upper one.
        cut: Whether the record holds more curves or points.
    """

    bounds: Mapping[tuple[str, int], int] = {}
    cut: bool = False

    @property
    def curves(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        return {OURS: self.ours, PAPER: self.paper, NULL: self.null}

    @property
    def full_title(self) -> str:
        """The title with the name of the published figure."""
        return f"{self.figure} of {self.publication}: {self.title}" if self.figure else self.title

    @property
    def capitalized_title(self) -> str:
        return self.title[:1].upper() + self.title[1:]

    @property
    def y_label(self) -> str:
        """'Batch time (s)': the quantity and its unit."""
        quantity = self.quantity or _LEADING.split(self.capitalized_title if self.figure else self.title, maxsplit=1)[0]
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
    """A panel with its tables and links.

    Attributes:
        panel: The panel.
        source: Source of our values, in words.
        run: Links to its run; empty for a panel over several runs.
        table: Table next to the picture.
        more: A folded table.
        where: Machine on which our values were measured or modelled.
    """

    panel: PlottedPanel
    source: str
    run: tuple[tuple[str, str], ...]
    table: Table | None
    more: Table | None = None
    where: str = ""


def build_panels(entry: StoredRecord, runs: Mapping[str, str]) -> list[ShownPanel]:
    """The panels of one record with their tables. runs: anchor of a run by the file of its record"""
    run = to_run(entry.record.label, entry.file, runs)
    panels = []
    for panel in read(entry.record):
        source = panel.evidence or entry.record.source.value
        beside, all_ours = compared(panel, source), values(panel, source)
        folded = all_ours if beside and rest(panel) else None
        panels.append(ShownPanel(panel, source, run, beside or all_ours, folded, _where(entry, source)))
    return panels


def _where(entry: StoredRecord, source: str) -> str:
    """'on a model of summit', 'on epyc-2-cores'; empty for values that depend on no machine."""
    if source in ("measured", "emulated"):
        return f"on {entry.machine or 'the machine of this page'}"
    machine = text_at(entry.record.config, "executor", "machine", "name")
    return f"on a model of {machine}" if source == "simulated" and machine else ""


def read(record: Record) -> list[PlottedPanel]:
    """The well-formed panels of a record, by title. Points and systems beyond the limits of a picture are left out."""
    panels = [_plotted(panel) for panel in _read(record) if isinstance(panel, FigurePanel)]
    drawable = [panel for panel in panels if panel.curves[OURS] or panel.curves[PAPER]]
    return sorted(drawable, key=lambda panel: derive.natural(panel.full_title))


def faults(record: Record) -> list[str]:
    """A sentence for each malformed panel of a record."""
    return [panel for panel in _read(record) if isinstance(panel, str)]


def _read(record: Record) -> list[FigurePanel | str]:
    """The panels of a record, with an error message in place of each malformed panel."""
    panels: list[FigurePanel | str] = []
    for place, row in enumerate(record.panels, 1):
        if is_map(row):
            continue
        try:
            panels.append(FigurePanel.read(row))
        except InvalidRequest as error:
            panels.append(f"panel {place} is not drawn: {error}")
    return panels


def fitted(record: Record) -> list[str]:
    """A remark on the claims to which constants of the record were fitted; empty without any."""
    claims = record.provenance.get("calibrated_on")
    names = [name for name in claims if isinstance(name, str)] if isinstance(claims, list) else []
    more = f" and {len(names) - _MOST_FITTED} more" if len(names) > _MOST_FITTED else ""
    return [f"calibrated: constants were fitted to {', '.join(names[:_MOST_FITTED])}{more}"] if names else []


def _plotted(panel: FigurePanel) -> PlottedPanel:
    """A panel within the limits of a picture, without systems that have no value."""
    curves: dict[str, dict[str, tuple[float, ...]]] = {}
    cut = len(panel.x) > _MOST_POINTS
    printed, bounds = _printed(panel)
    for side, lines in ((OURS, panel.ours), (PAPER, printed), (NULL, panel.null)):
        shown = {system: tuple(values[:_MOST_POINTS]) for system, values in lines.items()}
        shown = {system: values for system, values in shown.items() if not all(map(math.isnan, values))}
        cut = cut or len(shown) > _MOST_SYSTEMS
        curves[side] = dict(list(shown.items())[:_MOST_SYSTEMS])
    systems = {system for lines in curves.values() for system in lines}
    points = min(len(panel.x), _MOST_POINTS)
    drawn = {
        "x": tuple(panel.x[:_MOST_POINTS]),
        "calibrated": frozenset((name, at) for name, at in panel.calibrated if name in systems and 0 <= at < points),
        "bounds": bounds,
        "cut": cut,
    }
    return PlottedPanel.model_construct(**{**dict(panel), **curves, **drawn})


def _printed(panel: FigurePanel) -> tuple[dict[str, Sequence[float]], dict[tuple[str, int], int]]:
    """The printed values, from the claims of the points or from the record, and which of them are bounds."""
    claims = {claim.id: claim for claim in load.claims()} if panel.printed else {}
    points = [(system, index, name) for system, names in panel.printed.items() for index, name in enumerate(names)]
    values = {system: list(numbers) for system, numbers in panel.paper.items()}
    for system, index, name in points:
        if name:
            values.setdefault(system, [math.nan] * len(panel.x))[index] = published(claims, name)
    found = {(system, index): bound(claims, name) for system, index, name in points}
    return {**values}, {point: way for point, way in found.items() if way}


def rest(panel: PlottedPanel) -> bool:
    """Whether we have values where the paper prints none."""
    return any(
        math.isfinite(panel.at(OURS, system, index)) and math.isnan(panel.at(PAPER, system, index))
        for system in panel.systems
        for index in range(len(panel.x))
    )


def caption(panel: PlottedPanel, source: str, where: str = "", *, printed: bool = False) -> str:
    """Caption: unit, evidence, machine, printed numbers and fitted points.

    Args:
        panel: The panel.
        source: Source of our values.
        where: Machine of our values.
        printed: Whether claims hold other printed numbers of the same figure.
    """
    if panel.caption:
        return f"{panel.caption} Values {source}." if panel.evidence else panel.caption
    unit = UNITS.get(panel.unit, panel.unit)
    unit = f", in {unit}" if unit else ""
    where = f" {where}" if where else ""
    text = f"Values {source}{where}{unit}."
    if panel.curves[PAPER]:
        text = f"Printed values, and values {source}{where}{unit}."
    elif printed:
        text += " The paper prints none of these values; the claims below hold what it does print."
    elif panel.figure:
        text += " The paper draws these curves and prints no number for them."
    else:
        text += " The paper prints none of them."
    fitted = [f"{system} at {panel.x[index]}" for system, index in sorted(panel.calibrated)]
    text += " An arrow marks a printed bound." if panel.bounds else ""
    text += f" Calibrated (diamond): {', '.join(fitted)}." if fitted else ""
    return text + (" The record holds more curves or points than are shown." if panel.cut else "")


def compared(panel: PlottedPanel, source: str) -> Table | None:
    """Table of each printed value with ours and the null model's; None if the paper prints none."""
    unit = UNITS.get(panel.unit, panel.unit)
    points = "error\nand points (pt)" if panel.unit == "percent" else "error"
    rows: list[Row] = []
    for system in panel.systems:
        for index, point in enumerate(panel.x):
            paper, ours, null = (panel.at(curve, system, index) for curve in (PAPER, OURS, NULL))
            if math.isnan(paper):
                continue
            row: Row = {
                "curve": system,
                panel.axis or "point": Cell(point, badge=_badge(panel, system, index)),
                f"paper\n{unit}": number(paper, BOUNDS[panel.bounds.get((system, index), 0)] + plain(paper)),
                f"{source}\n{unit}": ours,
                points: DASH if _is_within(panel, system, index) else error(ours, paper, panel.unit),
            }
            other: Row = {f"null model\n{unit}": null, f"its {points}": error(null, paper, panel.unit)}
            rows.append({**row, **(other if panel.curves[NULL] else {})})
    return tabled(f"{panel.full_title}: the paper's values and ours", rows)


def values(panel: PlottedPanel, source: str) -> Table:
    """Table of all our values, a row per point, with the null model's below each."""
    unit = UNITS.get(panel.unit, panel.unit)
    rows = [
        {panel.axis or "point": point, **{f"{name}\n{unit}": _own(panel, name, index) for name in panel.systems}}
        for index, point in enumerate(panel.x)
    ]
    return Table(f"{panel.full_title}: {source} values", pd.DataFrame(rows))


def _is_within(panel: PlottedPanel, system: str, index: int) -> bool:
    """Whether our value is on the right side of a printed bound."""
    way = panel.bounds.get((system, index), 0)
    return way * (panel.at(OURS, system, index) - panel.at(PAPER, system, index)) > 0


def _own(panel: PlottedPanel, system: str, index: int) -> Cell:
    ours, null = panel.at(OURS, system, index), panel.at(NULL, system, index)
    words = (_badge(panel, system, index), QUICKEST if system == quickest(panel, index) else "")
    detail = "" if math.isnan(null) else f"null model {short(null)}"
    return number(ours, short(ours), detail, badge=" ".join(filter(None, words)))


def quickest(panel: PlottedPanel, index: int) -> str:
    """The system with the smallest time at a point; empty for other quantities, for one system and for ties."""
    if panel.unit not in TIMES or panel.quantity not in RACES:
        return ""
    times = {name: panel.at(OURS, name, index) for name in panel.curves[OURS]}
    times = {name: value for name, value in times.items() if math.isfinite(value)}
    least = [name for name, value in times.items() if value == min(times.values())]
    return least[0] if len(times) > 1 and len(least) == 1 else ""


def _badge(panel: PlottedPanel, system: str, index: int) -> str:
    return CALIBRATED if (system, index) in panel.calibrated else ""


def error(ours: float, paper: float, unit: str) -> Cell:
    """ours / paper - 1 in percent, and below it the difference in points if the unit is percent."""
    relative = 100 * derive.ratio(ours - paper, abs(paper))
    points = f"{_signed(ours - paper)} pt" if unit == "percent" and math.isfinite(ours - paper) else ""
    if not math.isfinite(relative):
        return Cell(NONE, detail=points, tone="faint")
    return Cell(f"{_signed(relative)} %", relative, points)


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}" if abs(value) < 1e4 else f"{value:+.2g}"
