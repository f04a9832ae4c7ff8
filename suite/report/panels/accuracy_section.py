"""Section of the page on the simulator's accuracy against public measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
from markupsafe import Markup

from suite.report.plots import figure
from suite.report.plots.plots import Picture
from suite.report.tables.record_tables import DASH, Cell, Table, number
from suite.simulate.validation import tables

GROUPS = 120  # rows of the picture and of its table
MOST = 60.0  # percent; larger errors are clipped, and their number stands next to them
_BAR, _DOT, _NULL = "#8fb3d9", "#2f74b5", "#e0912f"
_SAID: Mapping[str, str] = {
    "Ranges over plausible values of unknown settings": "A range changes one setting at a time that the source does "
    "not give. Its distance is 0 for a measured value inside, and is averaged over groups in the first row.",
    "Schedules with printed pass times": "Each pass and each message takes the time that the source prints. These "
    "times hold no optimizer step and no reduction, so the simulated throughput is a little too high.",
    "Fitted constants": "A constant is the rate of large matrix products over the best published one. Of the constants "
    "that other cells of the same group would have given, low and high are the least and the largest, best and worst "
    "the mean errors over groups with them; the error of turning cells crosses 10 % between the two.",
}


@dataclass(frozen=True, slots=True)
class AccuracySection:
    """Content of the section: the numbers of measurements and of groups, a picture with a row per group, and tables."""

    cells: int
    groups: int
    picture: Picture
    tables: tuple[Table, ...]


def accuracy_section(steps: pd.DataFrame, constants: pd.DataFrame) -> AccuracySection:
    """The section of the frames of suite.simulate.validation.tables."""
    groups = tables.groups(steps).sort_values("mean error", ascending=False, kind="stable")
    found = tuple(_table(title, frame) for title, frame in tables.tables(steps, constants).items())
    return AccuracySection(int(groups["cells"].sum()), len(groups), _picture(groups.head(GROUPS)), found)


def _table(title: str, frame: pd.DataFrame) -> Table:
    """A table of the page. Groups whose error is no smaller than that of the best null model are marked."""
    part = frame.head(GROUPS).reset_index()
    shown = part.apply(lambda column: column.map(lambda value: _cell(value, str(column.name))))
    if "null model" in part:
        for row in part.index[part["mean error"] >= part["null model"]]:
            shown.loc[row, "mean error"] = replace(
                shown.loc[row, "mean error"], detail="no better than null", tone="bad"
            )
    cut = "" if len(part) == len(frame) else f"{len(part)} of {len(frame)} rows are shown."
    return Table(title, shown, said=" ".join(filter(None, (_SAID.get(title), cut))))


def _cell(value: object, column: str) -> Cell:
    text = tables.shown(value, column)
    if not text:
        return DASH
    return Cell(text) if isinstance(value, str) else number(float(str(value)), text)


def _picture(groups: pd.DataFrame) -> Picture:
    title = "Error of the simulator by group of public measurements, the largest mean first."
    percent = 100 * groups[["mean error", "median", "null model"]]
    drawn = percent.clip(-MOST, MOST)
    places = range(len(groups))
    with figure.drawing(0.5 + 0.22 * len(groups), left=1.9, bottom=0.45) as (fig, ax):
        ax.barh(places, drawn["mean error"], color=_BAR, height=0.6)
        ax.plot(drawn["median"], places, "o", color=_DOT, markersize=4)
        ax.plot(drawn["null model"], places, "|", color=_NULL, markersize=9, markeredgewidth=2)
        ax.set_yticks(places, [figure.clean(str(name), 30) for name in groups.index])
        ax.set_xlabel("error of throughput, %")
        ax.invert_yaxis()
        for place, row in zip(places, percent.itertuples(index=False), strict=True):
            beyond = ", ".join(
                f"{name} {value:+.0f} %" for name, value in zip(percent, row, strict=True) if abs(value) > MOST
            )
            ax.text(MOST + 1, place, beyond, fontsize=7, va="center")
        svg = figure.finished(fig, "accuracy", title)
    legend = (
        (_BAR, "bar: mean absolute error"),
        (_DOT, "dot: median error, with its sign"),
        (_NULL, "tick: mean absolute error of the best null model"),
    )
    caption = f"{title} Errors beyond {MOST:g} % are cut, and stand next to their row."
    return Picture(caption, Markup(svg), legend)
