"""Plots of one experiment. A picture takes thirty times as long as its table, so their number is limited."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.core.trace import WAIT
from suite.core.units import si
from suite.report import derive
from suite.report.load import StoredRecord
from suite.report.names import named
from suite.report.panels import figure_panels
from suite.report.plots import curves, figure, gantt
from suite.report.tables.record_tables import Table, first_rows, with_values

MOST_PANELS = 40  # of one experiment
_MOST_OPEN = 20  # rows of a table that stands open

Legend = tuple[tuple[str, str], ...]  # (colour, name)


@dataclass(frozen=True, slots=True)
class Picture:
    """An `<svg>` with its caption; legend: (colour, name)."""

    caption: str
    svg: Markup
    legend: Legend = ()


@dataclass(frozen=True, slots=True)
class PanelPlot:
    """A panel with its picture and tables.

    Attributes:
        title: Title of the panel.
        run: Links to its run.
        picture: The picture; None if there is nothing to draw.
        table: Table next to the picture.
        more: A folded table.
        unfolded: Whether the table is open, as it compares printed values.
    """

    title: str
    run: tuple[tuple[str, str], ...]
    picture: Picture | None
    table: Table | None
    more: Table | None = None
    unfolded: bool = False


def of_panels(
    held: Sequence[figure_panels.ShownPanel],
    looks: Mapping[str, int],
    salt: str,
    *,
    most: int = 0,
    printed: bool = False,
) -> list[PanelPlot]:
    """Plots and tables of the first `most` panels (MOST_PANELS unless given); panels of one unit and x axis share
    their y axis. printed: whether claims hold printed numbers of the same figure
    """
    most = most or MOST_PANELS
    plots, more = [], len(held) - most
    siblings: dict[tuple[str, str], list[figure_panels.PlottedPanel]] = {}
    for drawn in held[:most]:
        siblings.setdefault(_kin(drawn.panel), []).append(drawn.panel)
    frames = {kin: curves.frame(each) for kin, each in siblings.items()}
    for number, drawn in enumerate(held[:most]):
        panel, source = drawn.panel, drawn.source
        caption = figure_panels.caption(panel, source, drawn.where, printed=printed)
        if number + 1 == most and more > 0:
            caption += f" {more} more panels are in the records."
        picture = None
        if panel.systems:
            svg = curves.picture(panel, looks, source, f"{salt}{number}", frames[_kin(panel)])
            picture = Picture(caption, Markup(svg), curves.legend(panel, looks))
        open_ = (
            bool(panel.curves[figure_panels.PAPER]) and drawn.table is not None and len(drawn.table.frame) <= _MOST_OPEN
        )
        table, more_values = first_rows(with_values(drawn.table) or drawn.table), first_rows(with_values(drawn.more))
        plots.append(PanelPlot(panel.full_title, drawn.run, picture, table, more_values, unfolded=open_))
    return plots


def _kin(panel: figure_panels.PlottedPanel) -> tuple[str, str]:
    """Properties shared by panels that are read side by side."""
    return (panel.y_label, panel.unit)


def of_runs(entries: Sequence[StoredRecord], salt: str) -> list[Picture]:
    """Losses, batch times, breakdown of the time, and memory, as far as the records hold them."""
    records = [entry.record for entry in entries]
    colours = figure.palette([record.label for record in records])
    faint = _faint(entries)
    pictures = []
    loss = {record.label: record.series["loss"] for record in records if record.series.get("loss")}
    held_out = {r.label: r.series["validation_loss"] for r in records if r.series.get("validation_loss")}
    if loss or held_out:
        caption = "Loss per batch." + (" Hollow, dotted: validation." if held_out else "")
        if figure.outlined(loss):
            caption += " Of long curves the least and the greatest of each few batches."
        legend = {label: colours[label] for label in colours if label in loss or label in held_out}
        shapes = {label: figure.shape(number)[1] for number, label in enumerate(colours)}
        legend_entries = tuple((colour, f"{shapes[label]} {named(label)}") for label, colour in legend.items())
        pictures.append(
            Picture(caption, Markup(figure.losses(loss, held_out, colours, f"{salt}-loss")), legend_entries)
        )
    if timed := times(entries, salt):
        pictures.append(timed)
    parts = {entry.record.label: derive.shares(entry) for entry in entries if entry.trace}
    if parts:
        caption = "Breakdown of the time of one traced batch."
        legend = _stacked(parts, figure.COLOURS)
        pictures.append(Picture(caption, Markup(figure.breakdowns(parts, faint, f"{salt}-parts")), _named(legend)))
    sides = [
        {r.label: kinds for r in records if (kinds := derive.memory_by_kind(r, side))}
        for side in ("predicted", "measured")
    ]
    if any(sides):
        caption = "Memory by kind on the rank with the most. Pale: predicted; full: measured."
        legend = _stacked(sides[0] | sides[1], figure.KINDS)
        pictures.append(Picture(caption, Markup(figure.memory(sides[0], sides[1], f"{salt}-memory")), _named(legend)))
    return pictures


def times(entries: Sequence[StoredRecord], salt: str, colours: Mapping[str, str] | None = None) -> Picture | None:
    """Batch times of the runs, with the shortest one that the op times of each traced run allow; None without any."""
    runs = {one.record.label: one for one in entries if derive.samples(one.record, derive.BATCH_TIME).n}
    if not runs:
        return None
    samples = {label: one.record.metrics[derive.BATCH_TIME].values for label, one in runs.items()}
    each, faint = figure.fewer(samples), _faint(entries)
    medians = {label: derive.samples(one.record, derive.BATCH_TIME).median for label, one in runs.items()}
    allowed = {label: derive.efficiency(one) * medians[label] for label, one in runs.items()}  # of the traced batch
    bounds = {label: bound for label, bound in allowed.items() if math.isfinite(bound)}
    counted = f"at most {each} samples of a run, in equal steps from its least to its greatest" if each else "samples"
    caption = f"Batch time: points are {counted}; the bar ends at their median."
    caption += " A triangle marks the shortest time that the run's own op times allow." if bounds else ""
    caption += " Pale: not comparable." if faint else ""
    colours = colours or figure.palette([one.record.label for one in entries])
    return Picture(caption, Markup(figure.batch_times(samples, bounds, faint, colours, f"{salt}-time")))


def _faint(entries: Sequence[StoredRecord]) -> set[str]:
    """Labels of the runs whose times are not comparable."""
    return {one.record.label for one in entries if not derive.comparable(one.record)}


def _named(legend: Mapping[str, str]) -> Legend:
    return tuple((colour, text) for text, colour in legend.items())


def _stacked(parts: Mapping[str, Mapping[str, float]], known: Mapping[str, str]) -> dict[str, str]:
    """The names that occur with a length, in the order they are stacked."""
    seen = {name: 0.0 for parts_of_run in parts.values() for name, value in parts_of_run.items() if value > 0}
    return {name: known.get(name, figure.OTHER) for name in figure.ordered(seen, known)}


def boxes(entries: Sequence[StoredRecord]) -> int:
    """Number of boxes in the timelines of these runs."""
    return sum(min(len(entry.trace.spans), gantt.MOST) for entry in entries if entry.trace)


def in_time(entries: Sequence[StoredRecord], most: int) -> tuple[list[tuple[str, Picture]], str]:
    """Timeline of one batch of each traced run, within `most` boxes, and a remark on the others."""
    traced = [(entry.record.label, entry.trace) for entry in entries if entry.trace]
    pictures: list[tuple[str, Picture]] = []
    for label, trace in traced:
        if most <= 0 or (pictures and len(trace.spans) > most):
            break
        drawn, end = gantt.window(trace.spans, most)
        most -= len(drawn)
        caption = "Numbers are microbatches; point at a box for its op and time."
        if len(drawn) < len(trace.spans):
            caption += f" Drawn: the first {len(drawn)} of {len(trace.spans)} spans, to {si(end, 's')}."
        names = figure.ordered(dict.fromkeys((span.category for span in drawn), 0.0), figure.COLOURS)
        colours = tuple((gantt.colour(name), "idle" if name == WAIT else name) for name in names)
        markup = gantt.gantt(trace.spans, trace.grid, label, len(drawn))
        pictures.append((label, Picture(caption, Markup(markup), colours)))
    omitted = len(traced) - len(pictures)
    return pictures, f"{omitted} more traced runs are not drawn; their Perfetto files are below." if omitted else ""
