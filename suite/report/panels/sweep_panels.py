"""Sweep panels: one metric over the runs of an experiment, one point per run.

A panel draws only comparable runs: the outcome is `ok`, the values are measured, each rank had a core, and no other run
has the same point. The table lists every other run with the reason why it is not drawn.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.config.experiment import BATCHES, GRID, NULL_NAMES, RANKS, SYSTEM, PanelSpec, read_panel
from suite.core.errors import InvalidRequest
from suite.core.reasons import headline
from suite.core.record import Outcome, Record, Source
from suite.core.values import MAX_CHARACTERS
from suite.report import derive, expectations
from suite.report.derive import SampleSummary
from suite.report.load import StoredRecord, at, grid_of
from suite.report.names import NONE, short
from suite.report.panels import figure_panels
from suite.report.panels.figure_panels import (
    QUICKEST,
    RACES,
    TIMES,
    UNITS,
    PlottedPanel,
    ShownPanel,
)
from suite.report.tables.record_tables import DASH, Cell, Row, Table, number, tabled, to_run

MAX_PANELS, MAX_POINTS, MAX_CURVES, MAX_ROWS = 40, 64, 12, 400
MIN_SAMPLES = 3  # a median of fewer samples is marked
TWICE, NOT_COMPARABLE = "twice", "not comparable"


_SCALES = (  # of units of one quantity, as records have them
    {"s": 1.0, "second": 1.0, "hour": 3600.0, "day": 86400.0},
    {"B": 1.0, "byte": 1.0, "megabyte": 1e6, "gigabyte": 1e9},
)


def conversion_factor(unit: str, target_unit: str) -> float:
    """The factor from `unit` to `target_unit`; nan where they measure different quantities."""
    if unit == target_unit:
        return 1.0
    scales = (scale for scale in _SCALES if {unit, target_unit} <= scale.keys())
    return next((scale[unit] / scale[target_unit] for scale in scales), math.nan)


@dataclass(slots=True)
class PanelPoint:
    """Value of a run at a point of a panel.

    Attributes:
        entry: The run.
        curve: Name of its curve.
        point: Label of its point; empty where the run has none.
        samples: Samples in the unit of the panel.
        value: Drawn value.
        reason: Why it is not drawn; empty where it is.
        badge: Short form of the reason, for a run that has a point.
    """

    entry: StoredRecord
    curve: str
    point: str
    samples: SampleSummary = field(default_factory=SampleSummary)
    value: float = math.nan
    reason: str = ""
    badge: str = ""


def read(group: derive.ExperimentGroup, runs: Mapping[str, str]) -> tuple[list[ShownPanel], list[tuple[str, str]]]:
    """The panels that the newest configuration of a group requests, and (title, remark) for each malformed one.

    Args:
        group: The experiment.
        runs: Anchor of a run by the file of its record.
    """
    rows = at(group.lead.record.config, "experiment", "panels")
    if rows is None:
        return [], []
    if not isinstance(rows, list):
        return [], [("panels", f"experiment.panels={reprlib.repr(rows)}; rule: a list of mappings")]
    panels, remarks = [], []
    for place, row in enumerate(rows[:MAX_PANELS], 1):
        try:
            spec = read_panel(row)
        except InvalidRequest as refusal:
            remarks.append((f"panel {place}", str(refusal)))
            continue
        panel, faults = _panel(spec, group, runs)
        panels.append(panel)
        remarks += [(spec.title, fault) for fault in faults]
    if len(rows) > MAX_PANELS:
        remarks.append(("panels", f"{len(rows) - MAX_PANELS} more are requested than the {MAX_PANELS} that are drawn"))
    return panels, remarks


def _panel(spec: PanelSpec, group: derive.ExperimentGroup, runs: Mapping[str, str]) -> tuple[ShownPanel, list[str]]:
    """A panel with its table, and the remarks on it."""
    # a published figure has panels of its own, and is no run of a system
    entries = [e for e in group.entries if e.record.outcome is not Outcome.OK or not figure_panels.read(e.record)]
    sample_unit = _sample_unit(spec, entries)
    unit = "ratio" if spec.divisor else "percent" if spec.share else sample_unit
    points = [point for entry in entries for point in _points(spec, entry, sample_unit)]
    _exclude_duplicates(points)
    for curve in dict.fromkeys(point.curve for point in points):
        drawable = [point for point in points if point.curve == curve and not point.reason]
        _normalize(spec, drawable, timed=_is_timed(spec, sample_unit))
    drawn = [point for point in points if not point.reason]
    labels = {point.point for point in points if point.point and (point.badge or not point.reason)}
    all_x = sorted(labels, key=lambda label: _sort_key(spec, label))
    all_curves = list(dict.fromkeys(point.curve for point in drawn))
    x, names = tuple(all_x[:MAX_POINTS]), all_curves[:MAX_CURVES]
    values = {(point.curve, point.point): point.value for point in drawn}
    heights = {name: tuple(values.get((name, label), math.nan) for label in x) for name in names}
    ours = {name: line for name, line in heights.items() if not all(map(math.isnan, line))}
    cut = len(all_x) > len(x) or len(all_curves) > len(names)
    metrics = list(spec.metric_by_point.values())
    quantity = metrics[0].replace("_", " ") if len(metrics) == 1 and not spec.normalized else ""
    panel = PlottedPanel.model_construct(
        title=spec.title, unit=unit, axis=spec.axis_label, x=x, ours=ours, cut=cut, quantity=quantity
    )
    sources = (source.value for source in Source if any(point.entry.record.source is source for point in drawn))
    source = " and ".join(sources)
    panel = panel.model_copy(update={"caption": _caption(spec, panel, source, points)})
    remarks = _hidden_points(spec, group)
    if len(points) > MAX_ROWS:
        remarks.append(f"{len(points) - MAX_ROWS} runs more than the table holds")
    return ShownPanel(panel, source or "ours", (), _table(spec, panel, sample_unit, points, runs)), remarks


# Points and curves of the runs


def point_name(value: Any) -> str:
    """A single value of a configuration as the name of a point or a curve; empty for a list, a mapping or nan."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.strip()[:MAX_CHARACTERS] or "none"
    if not isinstance(value, int | float):
        return ""
    try:
        return str(value)[:MAX_CHARACTERS] if math.isfinite(value) else ""
    except OverflowError:
        return ""


def _value_at(path: str, record: Record) -> str:
    """Name of the value at a path of a run's configuration; empty where there is no single value."""
    *parents, last = path.split(".")
    holder = at(record.config, *parents)
    return point_name(holder[last]) if isinstance(holder, dict) and last in holder else ""


def _curve_of(spec: PanelSpec, record: Record) -> str:
    """Name of a run's curve; empty where its configuration has no single value there."""
    if spec.curve not in (SYSTEM, GRID):
        return _value_at(spec.curve, record)
    grid = grid_of(record) if spec.curve == GRID else ""
    return "" if grid is None else f"{record.system} {grid}".strip()[:MAX_CHARACTERS]


def _point_of(spec: PanelSpec, record: Record) -> str:
    """Name of a run's point; empty where its configuration has no single value there."""
    if spec.key in (RANKS, GRID):
        grid = grid_of(record)
        return "" if grid is None else str(grid if spec.key == GRID else grid.size)
    return _value_at(spec.key, record)


def _sort_key(spec: PanelSpec, label: str) -> tuple[int, float, list[tuple[int, str]]]:
    """Order of points on the axis: no value, then numbers, then text in natural order."""
    value = next((name for name, named_label in spec.names.items() if named_label == label), label)
    if value in NULL_NAMES:
        return 0, 0.0, []
    try:
        position = float(value)
    except ValueError:
        position = math.nan
    return (1, position, []) if math.isfinite(position) else (2, 0.0, derive.natural(label))


def _sample_unit(spec: PanelSpec, entries: Iterable[StoredRecord]) -> str:
    """Unit of the samples: the requested one, or else that of the first run that has one."""
    units = (derive.quantity(entry.record, name)[1] for entry in entries for name in spec.metric_by_point.values())
    return ("" if spec.normalized else spec.unit) or next(filter(None, units), "")


def _points(spec: PanelSpec, entry: StoredRecord, sample_unit: str) -> Iterator[PanelPoint]:
    """The points of a run: one, one per validation, or one per metric of a panel with several."""
    record = entry.record
    curve = _curve_of(spec, record)
    name = curve or record.system[:MAX_CHARACTERS] or NONE
    trained = record.outcome is Outcome.OK and record.source is Source.MEASURED
    if spec.key == BATCHES and trained and (perplexities := derive.perplexities(record)):
        for batches, value in perplexities.items():
            yield PanelPoint(entry, name, batches, SampleSummary(value, value, value, 1), value)
        return
    for metric_point, metric in spec.metric_by_point.items():
        value_name = metric_point or _point_of(spec, record)
        point = PanelPoint(entry, name, spec.label(value_name) if value_name else "")
        if record.outcome is not Outcome.OK:
            point.point = "" if metric_point else point.point
            point.reason, point.badge = headline(record.reason, width=300), record.outcome.value
            yield point
            return
        samples, unit = derive.quantity(record, metric)
        factor = conversion_factor(unit, sample_unit)
        if record.source not in (Source.MEASURED, Source.EMULATED):
            point.reason = f"{record.source.value}: only what a clock measured is drawn"
        elif not curve or not value_name:
            point.reason = f"no single value at {spec.key if curve else spec.curve}"
        elif not math.isfinite(samples.median):
            point.reason = f"no {metric}"
        elif not math.isfinite(samples.median * factor):
            point.reason = f"{metric} is in {unit!r}, the panel in {sample_unit!r}"
        else:
            median, low, high = samples.median * factor, samples.low * factor, samples.high * factor
            point.samples, point.value = SampleSummary(median, low, high, samples.n), median
            if _is_timed(spec, sample_unit) and (crowded := derive.crowded(record, metric)):
                point.reason, point.badge = crowded, NOT_COMPARABLE
        yield point


def _is_timed(spec: PanelSpec, sample_unit: str) -> bool:
    """Whether the values are times or rates, which other runs on the machine disturb."""
    derived = any(name in derive.DERIVED for name in spec.metric_by_point.values())
    return derived or sample_unit in _SCALES[0] or sample_unit.endswith("/s")


def _exclude_duplicates(points: Sequence[PanelPoint]) -> None:
    """Exclude all runs that share a point of a curve, as none of them is distinguished."""
    points_by_place: dict[tuple[str, str], list[PanelPoint]] = {}
    for point in points:
        if not point.reason:
            points_by_place.setdefault((point.curve, point.point), []).append(point)
    for duplicates in points_by_place.values():
        for point in duplicates if len(duplicates) > 1 else ():
            point.reason = f"{len(duplicates)} runs fall on this point, and none of them is drawn"
            point.badge = TWICE


def _normalize(spec: PanelSpec, points: Sequence[PanelPoint], *, timed: bool) -> None:
    """Divide the points of one curve by its value at `spec.divisor` or by its sum, where their runs are comparable."""
    if spec.share:
        total = sum(point.value for point in points)
        missing = {spec.label(name) for name in spec.metrics} - {point.point for point in points}
        for point in points:
            if missing:
                point.reason = f"no share of the sum without {', '.join(sorted(missing))}"
            elif any(other.entry is not point.entry for other in points):
                point.reason = "its parts are of several runs"
            else:
                point.value = 100 * derive.ratio(point.value, total)
    base = next((point for point in points if point.point == spec.divisor), None)
    divisor = base.value if base else math.nan
    for point in points if spec.divisor else ():
        records = (point.entry.record, base.entry.record) if base else ()
        if len({record.source for record in records}) > 1:
            point.reason, point.badge = f"the run at {spec.divisor} is of another source", NOT_COMPARABLE
        elif timed and (reason := derive.not_in_turns(records)):
            point.reason, point.badge = reason, NOT_COMPARABLE
        else:
            point.value = derive.ratio(point.value, divisor)
    for point in points:
        if not point.reason and not math.isfinite(point.value):
            point.reason = f"nothing at {spec.divisor} to divide by" if spec.divisor else "no sum to divide by"


def _hidden_points(spec: PanelSpec, group: derive.ExperimentGroup) -> list[str]:
    """A remark on points that are missing because a newer run at another point has the same label."""
    points = {(entry.record.system, _point_of(spec, entry.record)) for entry in group.entries}
    earlier = [entry.record for entry in group.earlier if spec.key and entry.record.outcome is Outcome.OK]
    labels = dict.fromkeys(
        record.label[:MAX_CHARACTERS]
        for record in earlier
        if (point := _point_of(spec, record)) and (record.system, point) not in points
    )
    if not labels:
        return []
    names = ", ".join(list(labels)[:4])
    return [f"{names}: a newer run at another point has the same label; rule: a label per run; legal: tag=NAME"]


# Caption and table


def _caption(spec: PanelSpec, panel: PlottedPanel, source: str, points: Sequence[PanelPoint]) -> str:
    """Caption: source and unit of the values, and the points that are left out."""
    unit = f", in {UNITS.get(panel.unit, panel.unit)}" if panel.unit and not spec.normalized else ""
    text = f"Medians of {source} runs{unit}." if source else f"No run{unit}."
    drawn = {id(point.entry): point.entry.record for point in points if not point.reason}
    if spec.divisor:
        text += f" Each curve is divided by its own value at {spec.divisor}."
    elif spec.share:
        text += f" In percent of the sum of {', '.join(map(spec.label, spec.metrics))[:200]}, curve by curve."
    elif _is_timed(spec, panel.unit) and (reason := derive.not_in_turns(drawn.values())):
        text += f" Beware: {reason[:400]}."
    if excluded := len({id(point.entry) for point in points if point.badge == NOT_COMPARABLE}):
        text += f" Not drawn, as their times are not comparable: {excluded} of the runs."
    if any(point.badge == TWICE for point in points):
        text += " Where several runs fall on one point of a curve, none of them is drawn."
    return text + (" There are more curves or points than are drawn." if panel.cut else "")


def _table(
    spec: PanelSpec,
    panel: PlottedPanel,
    sample_unit: str,
    points: Sequence[PanelPoint],
    runs: Mapping[str, str],
) -> Table | None:
    """A row per run and point, drawn or not."""
    unit, raw_unit = UNITS.get(panel.unit, panel.unit), UNITS.get(sample_unit, sample_unit)
    place = {curve: number for number, curve in enumerate(dict.fromkeys(point.curve for point in points))}
    competing: dict[str, list[StoredRecord]] = {}
    for each in points if panel.quantity in RACES and panel.unit in TIMES else ():
        competing.setdefault(each.point, []).extend([] if each.reason else [each.entry])
    metric = panel.quantity.replace(" ", "_")
    best = {label: expectations.quickest(entries, metric) for label, entries in competing.items()}
    rows: list[Row] = []
    for point in sorted(points, key=lambda one: (place[one.curve], not one.point, _sort_key(spec, one.point))):
        value = math.nan if point.reason and spec.normalized else point.value
        fastest = QUICKEST if point.entry is best.get(point.point) and not point.reason else ""
        row: Row = {
            "curve": point.curve,
            panel.axis or "point": point.point or NONE,
            f"median\n{unit}": number(value, short(value), tone="faint" if point.reason else "", badge=fastest),
            "run\nsource, or why it is not drawn": _run_cell(point, runs),
            f"samples\n{f'{raw_unit}, median ' if spec.normalized else ''}[least … greatest]": _samples_cell(
                point, spec.normalized
            ),
        }
        rows.append(row)
    return tabled(f"{panel.title}: run by run", rows[:MAX_ROWS])


def _samples_cell(point: PanelPoint, normalized: bool) -> Cell:
    """Number of samples of a run with their minimum and maximum; too few are marked."""
    if not point.samples.n:
        return DASH
    summary = point.samples
    median, low, high = (short(float(f"{value:.3g}")) for value in (summary.median, summary.low, summary.high))
    ends = f"\n{f'{median} ' if normalized else ''}[{low} … {high}]"
    badge = "few" if summary.n < MIN_SAMPLES else ""
    return Cell(str(summary.n), summary.n, ends, "faint" if point.reason else "", badge=badge)


def _run_cell(point: PanelPoint, runs: Mapping[str, str]) -> Cell:
    """Link to a run, with its source or the reason that it is not drawn."""
    record = point.entry.record
    links = to_run(record.label, point.entry.file, runs)
    return Cell(
        "" if links else record.label, detail=point.reason or record.source.value, badge=point.badge, links=links
    )
