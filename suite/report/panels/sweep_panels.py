"""Panels over the runs of an experiment, one point per run, with a reason for each run left out.

Drawn is only what may be compared: runs that ended well, on a clock, with a core for each rank, and alone at their
point. Every other run has a row with its reason, so that no system is missing silently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from suite.core.claim import Claim
from suite.core.errors import SuiteError
from suite.core.reasons import headline
from suite.core.record import Outcome, Record, Source
from suite.report import derive
from suite.report.derive import SampleSummary
from suite.report.load import StoredRecord, at, grid_of
from suite.report.panels import figure_panels
from suite.report.panels.figure_panels import (
    NULL,
    OURS,
    PAPER,
    QUICKEST,
    UNITS,
    FigurePanel,
    ShownPanel,
    error,
    quickest,
)
from suite.report.panels.panel_spec import (
    BATCHES,
    LONG,
    SECONDS,
    PanelSpec,
    Paper,
    Printed,
    factor,
    parse,
    published,
    told,
    word,
)
from suite.report.tables.claim_tables import anchor, plain, short
from suite.report.tables.record_tables import NONE, Cell, Column, Table, number, to_run

_MOST, _MOST_POINTS, _MOST_CURVES, _MOST_ROWS = 40, 64, 12, 400
_FEW = 3  # a median of fewer samples is marked
_TWICE, _APART = "twice", "not comparable"


@dataclass(slots=True)
class _Spot:
    """Value of a run at a point.

    Attributes:
        why: The reason that it is not drawn.
        mark: The word for it, where it has a place.
    """

    entry: StoredRecord
    curve: str
    point: str
    samples: SampleSummary = field(default_factory=SampleSummary)
    value: float = math.nan
    why: str = ""
    mark: str = ""


def read(
    group: derive.ExperimentGroup, claims: Mapping[str, Claim], runs: Mapping[str, str]
) -> tuple[list[ShownPanel], list[tuple[str, str]]]:
    """The requested panels of the group's newest config, and (title, remark) on malformed requests.

    Args:
        claims: By id.
        runs: A run's anchor by its record's file.
    """
    rows = at(group.lead.record.config, "experiment", "panels")
    if rows is None:
        return [], []
    if not isinstance(rows, list):
        return [], [("panels", f"they are {told(rows)}; rule: a list of mappings")]
    panels, remarks = [], []
    for place, row in enumerate(rows[:_MOST], 1):
        try:
            spec = parse(row)
        except SuiteError as fault:
            remarks.append((f"panel {place}", str(fault)))
            continue
        panel, faults = _panel(spec, group, claims, runs)
        panels.append(panel)
        remarks += [(spec.title, fault) for fault in faults]
    if len(rows) > _MOST:
        remarks.append(("panels", f"{len(rows) - _MOST} more are asked for than the {_MOST} that are made"))
    return panels, remarks


def _panel(
    asked: PanelSpec, group: derive.ExperimentGroup, claims: Mapping[str, Claim], runs: Mapping[str, str]
) -> tuple[ShownPanel, list[str]]:
    """A panel with its table, and what there is to remark."""
    # a published figure has panels of its own, and is no run of a system
    entries = [e for e in group.entries if e.record.outcome is not Outcome.OK or not figure_panels.read(e.record)]
    own_unit = _own_unit(asked, entries, claims)
    unit = "ratio" if asked.relative else "percent" if asked.share else own_unit
    spots = [spot for entry in entries for spot in _spots(asked, entry, own_unit)]
    _mark_twice(spots)
    for curve in dict.fromkeys(spot.curve for spot in spots):
        _set_values(asked, [spot for spot in spots if spot.curve == curve and not spot.why], _timed(asked, own_unit))
    paper, remarks = published(asked, own_unit, unit, claims)
    drawn = [spot for spot in spots if not spot.why]
    points = {spot.point for spot in spots if spot.point and (spot.mark or not spot.why)}
    whole = sorted(points | {point for printed in paper.values() for point in printed}, key=asked.order)
    curves = list(dict.fromkeys((*(spot.curve for spot in drawn), *paper)))
    x, names = tuple(whole[:_MOST_POINTS]), curves[:_MOST_CURVES]
    values_by_point = {(OURS, spot.curve, spot.point): spot.value for spot in drawn}
    values_by_point |= {(PAPER, name, point): one.value for name, of in paper.items() for point, one in of.items()}
    sides: dict[str, dict[str, tuple[float, ...]]] = {OURS: {}, PAPER: {}, NULL: {}}
    for side, name in ((side, name) for side in (OURS, PAPER) for name in names):
        values = tuple(values_by_point.get((side, name, point), math.nan) for point in x)
        if not all(map(math.isnan, values)):
            sides[side][name] = values
    cut = len(whole) > len(x) or len(curves) > len(names)
    metrics = list(asked.metrics.values())
    quantity = metrics[0].replace("_", " ") if len(metrics) == 1 and not asked.divided else ""
    panel = FigurePanel(asked.title, unit, asked.axis, x, sides, frozenset(), cut, quantity=quantity)
    source = " and ".join(source.value for source in Source if any(s.entry.record.source is source for s in drawn))
    panel = replace(panel, told=_caption(asked, panel, source, spots))
    if len(spots) > _MOST_ROWS:
        remarks.append(f"{len(spots) - _MOST_ROWS} runs more than the table holds")
    remarks = _hidden(asked, group) + remarks[:_MOST]
    return ShownPanel(panel, source or "ours", (), _table(asked, panel, own_unit, spots, paper, runs)), remarks


# Values of the runs


def _own_unit(asked: PanelSpec, entries: Iterable[StoredRecord], claims: Mapping[str, Claim]) -> str:
    """The common unit of the samples: the requested one, or else the unit of the first run or claim that has one."""
    units = (derive.quantity(entry.record, name)[1] for entry in entries for name in asked.metrics.values())
    ids = (name for points in asked.paper.values() for name in points.values() if isinstance(name, str))
    claim_units = (claims[name].unit for name in ids if name in claims)
    return ("" if asked.divided else asked.unit) or next(filter(None, units), "") or next(claim_units, "")


def _spots(asked: PanelSpec, entry: StoredRecord, own: str) -> Iterator[_Spot]:
    """A run's places in the panel: one, or one per metric where these are the points and the run did not fail."""
    record = entry.record
    curve = _curve(asked, record)
    trained = record.outcome is Outcome.OK and record.source is Source.MEASURED
    if asked.key == BATCHES and trained and (perplexities := derive.perplexities(record)):
        for place, value in perplexities.items():
            yield _Spot(
                entry, curve or record.system[:LONG] or NONE, place, SampleSummary(value, value, value, 1), value
            )
        return
    for name, metric in asked.metrics.items():
        point = name or _point(asked, record)
        spot = _Spot(entry, curve or record.system[:LONG] or NONE, asked.shown(point) if point else "")
        if record.outcome is not Outcome.OK:
            spot.point = "" if name else spot.point
            spot.why, spot.mark = headline(record.reason, width=300), record.outcome.value
            yield spot
            return
        samples, unit = derive.quantity(record, metric)
        times = factor(unit, own)
        if record.source not in (Source.MEASURED, Source.EMULATED):
            spot.why = f"{record.source.value}: only what a clock measured is drawn"
        elif not curve or not point:
            spot.why = f"no single value at {asked.key if curve else asked.curve}"
        elif not math.isfinite(samples.median):
            spot.why = f"no {metric}"
        elif not math.isfinite(samples.median * times):
            spot.why = f"{metric} is in {unit!r}, the panel in {own!r}"
        else:
            ends = (samples.median * times, samples.low * times, samples.high * times)
            spot.samples, spot.value = SampleSummary(*ends, samples.n), ends[0]
            if _timed(asked, own) and (crowd := derive.crowded(record, metric)):
                spot.why, spot.mark = crowd, _APART
        yield spot


def _curve(asked: PanelSpec, record: Record) -> str:
    """Name of a run's curve; empty where its config has no single value there."""
    if asked.curve not in ("system", "grid"):
        return _value(asked.curve, record)
    grid = grid_of(record) if asked.curve == "grid" else ""
    return "" if grid is None else f"{record.system} {grid}".strip()[:LONG]


def _point(asked: PanelSpec, record: Record) -> str:
    """The value of the key in a run's config, as text; empty where there is no single one."""
    if asked.key in ("ranks", "grid"):
        grid = grid_of(record)
        return "" if grid is None else str(grid if asked.key == "grid" else grid.size)
    return _value(asked.key, record)


def _value(path: str, record: Record) -> str:
    """The value at a path of a run's config, as text; empty where there is none, or no single value."""
    *parents, last = path.split(".")
    holder = at(record.config, *parents)
    return word(holder[last]) if isinstance(holder, dict) and last in holder else ""


def _timed(asked: PanelSpec, own: str) -> bool:
    """Whether the values are times or rates, which the other runs of a machine disturb."""
    return own in SECONDS or own.endswith("/s") or any(name in derive.DERIVED for name in asked.metrics.values())


def _mark_twice(spots: Sequence[_Spot]) -> None:
    """Two runs at one point of one curve: which of them is meant cannot be told, so neither is drawn."""
    spots_by_key: dict[tuple[str, str], list[_Spot]] = {}
    for spot in spots:
        if not spot.why:
            spots_by_key.setdefault((spot.curve, spot.point), []).append(spot)
    for many in spots_by_key.values():
        for spot in many if len(many) > 1 else ():
            spot.why, spot.mark = f"{len(many)} runs fall on this point, and none of them is drawn", _TWICE


def _set_values(asked: PanelSpec, mine: Sequence[_Spot], timed: bool) -> None:
    """One curve, divided by its value at a point or by its sum, where that is asked for and its runs allow it."""
    if asked.share:
        total = sum(spot.value for spot in mine)
        missing = {asked.shown(name) for name in asked.metrics} - {spot.point for spot in mine}
        for spot in mine:
            if missing:
                spot.why = f"no share of the sum without {', '.join(sorted(missing))}"
            elif any(other.entry is not spot.entry for other in mine):
                spot.why = "its parts are of several runs"
            else:
                spot.value = 100 * derive.ratio(spot.value, total)
    base = next((spot for spot in mine if spot.point == asked.relative), None)
    below = base.value if base else math.nan
    for spot in mine if asked.relative else ():
        records = (spot.entry.record, base.entry.record) if base else ()
        if len({record.source for record in records}) > 1:
            spot.why, spot.mark = f"the run at {asked.relative} is of another source", _APART
        elif timed and (why := derive.not_in_turns(records)):
            spot.why, spot.mark = why, _APART
        else:
            spot.value = derive.ratio(spot.value, below)
    for spot in mine:
        if not spot.why and not math.isfinite(spot.value):
            spot.why = f"nothing at {asked.relative} to divide by" if asked.relative else "no sum to divide by"


def _hidden(asked: PanelSpec, group: derive.ExperimentGroup) -> list[str]:
    """Remark on points without a drawing, as a newer run elsewhere has the label of the previous one."""
    points = {(entry.record.system, _point(asked, entry.record)) for entry in group.entries}
    lost = [e.record for e in group.earlier if asked.key and e.record.outcome is Outcome.OK and _point(asked, e.record)]
    names = dict.fromkeys(r.label[:LONG] for r in lost if (r.system, _point(asked, r)) not in points)
    if not names:
        return []
    names_text = ", ".join(list(names)[:4])
    return [f"{names_text}: a newer run at another point has the same label; rule: a label per run; legal: tag=NAME"]


# Tables and captions


def _caption(asked: PanelSpec, panel: FigurePanel, source: str, spots: Sequence[_Spot]) -> str:
    """Caption: the drawn and the omitted points."""
    unit = f", in {UNITS.get(panel.unit, panel.unit)}" if panel.unit and not asked.divided else ""
    printed = "Printed values" if panel.curves[PAPER] else ""
    medians = f"medians of {source} runs" if source else "no run"
    text = " and ".join(filter(None, (printed, medians)))
    text = f"{text[:1].upper()}{text[1:]}{unit}."
    drawn = {id(spot.entry): spot.entry.record for spot in spots if not spot.why}
    if asked.relative:
        text += f" Each curve is divided by its own value at {asked.relative}."
    elif asked.share:
        text += f" In percent of the sum of {', '.join(map(asked.shown, asked.metrics))[:200]}, curve by curve."
    elif _timed(asked, panel.unit) and (apart := derive.not_in_turns(drawn.values())):
        text += f" Beware: {apart[:400]}."
    if faint := len({id(spot.entry) for spot in spots if spot.mark == _APART}):
        text += f" Not drawn, as their times are not comparable: {faint} of the runs."
    if any(spot.mark == _TWICE for spot in spots):
        text += " Where several runs fall on one point of a curve, none of them is drawn."
    return text + (" There are more curves or points than are drawn." if panel.cut else "")


def _table(
    asked: PanelSpec, panel: FigurePanel, own: str, spots: Sequence[_Spot], paper: Paper, runs: Mapping[str, str]
) -> Table:
    """A row per run and point, drawn or not, and one for each published value without a run."""
    unit, raw = UNITS.get(panel.unit, panel.unit), UNITS.get(own, own)
    columns = (
        Column("curve", numeric=False),
        Column(panel.axis or "point", numeric=False),
        *((Column("paper", detail=unit),) if paper else ()),
        Column("median", detail=unit),
        *((Column("error", detail="and points (pt)" if panel.unit == "percent" else ""),) if paper else ()),
        Column("run", numeric=False, detail="source, or why it is not drawn"),
        Column("samples", detail=f"{f'{raw}, median ' if asked.divided else ''}[least … greatest]"),
    )
    spots_by_row: dict[tuple[str, str], list[_Spot | None]] = {}
    for one in spots:
        spots_by_row.setdefault((one.curve, one.point), []).append(one)
    for curve, points in paper.items():
        for point in points:
            spots_by_row.setdefault((curve, point), [None])
    place = {curve: number for number, curve in enumerate(dict.fromkeys(curve for curve, _ in spots_by_row))}
    rows = []
    for curve, point in sorted(spots_by_row, key=lambda at: (place[at[0]], not at[1], asked.order(at[1]))):
        printed = paper.get(curve, {}).get(point)
        for spot in spots_by_row[curve, point]:
            value = math.nan if spot is None or (spot.why and asked.divided) else spot.value
            ours = math.nan if spot is None or spot.why else value
            row = [Cell(curve), Cell(point or NONE)]
            row += [_printed(printed, asked.divided)] if paper else []
            first = QUICKEST if point in panel.x and curve == quickest(panel, panel.x.index(point)) else ""
            cell = number(value, short(value), tone="faint" if math.isnan(ours) else "")
            row.append(replace(cell, badge="" if math.isnan(ours) else first))
            row += [error(ours, printed.value if printed else math.nan, panel.unit)] if paper else []
            rows.append((*row, _run(spot, runs), _samples(spot, asked.divided)))
    return Table(f"{panel.title}: run by run", columns, tuple(rows[:_MOST_ROWS]))


def _printed(one: Printed | None, divided: bool) -> Cell:
    """A published value as a link to its claim; a divided value has digits that no paper printed."""
    if one is None:
        return Cell(NONE, tone="faint")
    return Cell("", one.value, links=((f"#{anchor(one.claim.id)}", (short if divided else plain)(one.value)),))


def _samples(spot: _Spot | None, divided: bool) -> Cell:
    """How many samples a run has, and their ends; too few are marked."""
    if spot is None or not spot.samples.n:
        return Cell(NONE, tone="faint")
    median, low, high = (
        short(float(f"{value:.3g}")) for value in (spot.samples.median, spot.samples.low, spot.samples.high)
    )
    ends = f"\n{f'{median} ' if divided else ''}[{low} … {high}]"
    few = "few" if spot.samples.n < _FEW else ""
    return Cell(str(spot.samples.n), spot.samples.n, ends, "faint" if spot.why else "", badge=few)


def _run(spot: _Spot | None, runs: Mapping[str, str]) -> Cell:
    """The way to a run, with its source or the reason that it is not drawn."""
    if spot is None:
        return Cell("no run", tone="faint")
    record = spot.entry.record
    links = to_run(record.label, spot.entry.file, runs)
    return Cell("" if links else record.label, detail=spot.why or record.source.value, badge=spot.mark, links=links)
