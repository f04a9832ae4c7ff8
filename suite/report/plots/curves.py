"""Draw a panel: our values filled, printed values hollow, the null model pale and dotted.

If the points are numbers, the x axis is numeric and lines connect our values. If the points are names (networks,
systems, stages), each system has a bar with a marker on top, or only the marker on a logarithmic y axis. Colour, marker
and line style identify the system.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from suite.core.units import si
from suite.report.names import named, short, unit
from suite.report.panels.figure_panels import BOUNDS, CALIBRATED, NULL, OURS, PAPER, PlottedPanel, caption
from suite.report.plots.figure import PALETTE, clean, drawable, drawing, finished, shape
from suite.report.plots.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# with eight colours and seven shapes, up to 168 systems look different
LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (6, 2, 1.5, 2)))
_WIDE = 72  # characters of the points' names that fit below a picture
_STEEP = 10  # a larger range of values has a log scale, except shares
_OCTAVES = 8  # a larger range of points has a log scale
_GROUP = 0.8  # of the distance between two names that the bars at one of them take
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Frame:
    """Ends of the y axis, and whether it is logarithmic. Panels of one figure with the same unit share one frame."""

    low: float
    high: float
    log: bool


def legend(panel: PlottedPanel, looks: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """(colour, shape and name) of each system. looks: a number by system, the same in all pictures of an experiment."""
    return tuple((_colour(looks[name]), f"{shape(looks[name])[1]} {named(name)}") for name in panel.systems)


def numbers(x: Sequence[str]) -> list[float] | None:
    """The points as numbers if all are plain numbers in rising order; otherwise None."""
    if not all(_NUMBER.fullmatch(name) for name in x):
        return None
    positions = [float(name) for name in x]
    return positions if all(a < b for a, b in pairwise(positions)) else None


def frame(siblings: Iterable[PlottedPanel]) -> Frame:
    """A y axis for our and the printed values of all `siblings`, and for values of the null model near them."""
    panels = list(siblings)

    def values(*sides: str) -> list[float]:
        every = (curve for panel in panels for side in sides for curve in panel.curves[side].values())
        return [value for curve in every for value in drawable(curve) if math.isfinite(value)]

    flat = values(OURS, PAPER)
    low, high = min(flat, default=0.0), max(flat, default=1.0)
    steep = high / low >= _STEEP if low > 0 else False
    has_scale = any(panel.scale for panel in panels)
    log = low > 0 and (has_scale or (steep and all(panel.unit != "percent" for panel in panels)))
    null = [value for value in values(NULL) if not log or low / _STEEP <= value <= high * _STEEP]
    return Frame(min([low, *null]), max([high, *null]), log)


def picture(panel: PlottedPanel, looks: Mapping[str, int], source: str, salt: str, shared: Frame | None = None) -> str:
    """The panel as an svg. shared: the y axis, where the panel has siblings."""
    systems, axis = panel.systems, shared or frame([panel])
    places = numbers(panel.x)
    least = axis.low if axis.log else -math.inf  # a null model may be nil, or far below everything
    drawn = {
        (c, s): [value if value >= least else math.nan for value in drawable(panel.curves[c][s])]
        for c in (NULL, OURS, PAPER)
        for s in panel.curves[c]
    }
    x = [float(index) for index in range(len(panel.x))] if places is None else places
    width = _GROUP / max(len(systems), 1)
    with drawing(3.1, left=0.72, top=0.36, bottom=0.46) as (fig, ax):
        for (curve, system), heights in drawn.items():
            place = systems.index(system)
            shift = 0.0 if places else width * (place - (len(systems) - 1) / 2)
            at = [value + shift for value in x]
            style = _style(curve, looks[system])
            if places is None:
                style |= {"linestyle": "none"}
                if curve == OURS and not axis.log:
                    tops = [0.0 if math.isnan(height) else height for height in heights]
                    ax.bar(at, tops, width * 0.92, color=style["color"], alpha=0.32, linewidth=0, zorder=1)
            [line] = ax.plot(at, heights, **style)
            line.set(gid=f"{curve}-{place}", clip_on=False)
        for system, index in sorted(panel.calibrated):
            curves = [drawn[curve, system][index] for curve in (PAPER, OURS) if system in panel.curves[curve]]
            place = systems.index(system)
            shift = 0.0 if places else width * (place - (len(systems) - 1) / 2)
            height = next(filter(math.isfinite, curves), math.nan)
            [mark] = ax.plot(x[index] + shift, height, **_style(CALIBRATED, 0))
            mark.set(gid=f"{CALIBRATED}-{place}-{index}", clip_on=False)
        for (system, index), way in panel.bounds.items():
            place, height = systems.index(system), drawn[PAPER, system][index]
            foot = x[index] + (0.0 if places else width * (place - (len(systems) - 1) / 2))
            length = 0.25 * height if axis.log else 0.12 * (axis.high - min(axis.low, 0))
            ax.errorbar(foot, height, length, lolims=way > 0, uplims=way < 0, fmt="none", ecolor=_colour(looks[system]))
        _y_axis(ax, panel, axis)
        _x_axis(ax, panel, places)
        _key(ax, panel, source, joined=places is not None and len(places) > 1)
        return finished(fig, salt, _alt(panel, source), _hover(panel, systems, drawn))


def _hover(
    panel: PlottedPanel, systems: Sequence[str], drawn: Mapping[tuple[str, str], Sequence[float]]
) -> dict[str, list[str]]:
    """The text of each marker by the id of its line: 'AxoNN, printed, 64: 8.2 s'."""
    words = {OURS: "ours", PAPER: "printed", NULL: "null model"}
    return {
        f"{curve}-{systems.index(system)}": [
            f"{system}, {words[curve]}, {x}: {_bound(panel, curve, system, index)}{short(height)} {unit(panel.unit)}"
            for index, (x, height) in enumerate(zip(panel.x, heights, strict=True))
            if not math.isnan(height)
        ]
        for (curve, system), heights in drawn.items()
    }


def _bound(panel: PlottedPanel, curve: str, system: str, index: int) -> str:
    return BOUNDS[panel.bounds.get((system, index), 0)] if curve == PAPER else ""


def _style(curve: str, look: int) -> dict[str, Any]:
    colour, marker = _colour(look), shape(look)[0]
    if curve == OURS:
        size = 5 if marker in "os^v" else 6.5
        return {
            **{"color": colour, "marker": marker, "markersize": size, "markeredgewidth": 0, "zorder": 3},
            **{"linewidth": 1.4, "linestyle": LINES[look % len(LINES)]},
        }
    if curve == NULL:
        return {"color": colour, "marker": "_", "markersize": 9, "linewidth": 1.5, "linestyle": ":", "alpha": 0.6}
    hollow = {"markerfacecolor": "none", "linestyle": "none", "zorder": 4}
    if curve == PAPER:
        return {**hollow, "marker": marker, "markeredgecolor": colour, "markersize": 9.5, "markeredgewidth": 1.4}
    return {**hollow, "marker": "D", "markeredgecolor": INK, "markersize": 11, "markeredgewidth": 0.9}


def _y_axis(ax: Axes, panel: PlottedPanel, axis: Frame) -> None:
    low, high = axis.low, axis.high
    if axis.log:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.35, high * 1.35)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        if low >= 0:
            ax.set_ylim(0, high * (1.25 if panel.bounds else 1.1) or 1.0)  # room for the arrows of bounds
        else:
            ax.axhline(0, color=INK, linewidth=0.7)
            ax.set_ylim(low - 0.08 * (max(high, 0) - low or 1.0), max(high, 0) + 0.08 * (max(high, 0) - low or 1.0))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, "B") if panel.unit == "B" else f"{value:g}"))
    ax.set_ylabel(clean(panel.y_label, 44) + (", log scale" if axis.log else ""))


def _x_axis(ax: Axes, panel: PlottedPanel, places: Sequence[float] | None) -> None:
    names = [clean(name, 14) for name in panel.x]
    count = len(names)
    log = places is not None and count > 1 and places[0] > 0 and places[-1] / places[0] >= _OCTAVES
    ax.set_xlabel(clean(panel.x_label, 60) + (", log scale" if log else ""))
    if places is None:
        widest = max(((len(a) + len(b)) / 2 + 1 for a, b in pairwise(names)), default=0.0)
        every = max(1, math.ceil(count * widest / _WIDE))
        ax.set_xticks(range(0, count, every), names[::every])
        ax.set_xlim(-0.5, count - 0.5)
        return
    scaled = [math.log(place) for place in places] if log else list(places)
    span = scaled[-1] - scaled[0] or 1.0
    ticks: list[int] = []
    for index, value in enumerate(scaled):  # names that would run into the last one are left out
        if (
            not ticks
            or (value - scaled[ticks[-1]]) / span * _WIDE >= (len(names[index]) + len(names[ticks[-1]])) / 2 + 1
        ):
            ticks.append(index)
    if log:
        ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([places[index] for index in ticks], [names[index] for index in ticks])
    margin = 0.06 * span
    ends = (scaled[0] - margin, scaled[-1] + margin)
    ax.set_xlim(*(map(math.exp, ends) if log else ends))


def _key(ax: Axes, panel: PlottedPanel, source: str, *, joined: bool) -> None:
    """Legend above the plot: colours stand for systems, shapes for evidence."""
    label = (
        (OURS, source),
        (PAPER, "printed in the paper"),
        (NULL, "null model"),
        (CALIBRATED, "calibrated"),
    )
    has = {curve: bool(panel.curves[curve]) for curve in (OURS, PAPER, NULL)} | {CALIBRATED: bool(panel.calibrated)}
    handles = []
    for curve, text in label:
        if has[curve]:
            ink = {"markeredgecolor" if curve in (PAPER, CALIBRATED) else "color": INK}
            style = _style(curve, 0) | ink | ({} if joined else {"linestyle": "none"})
            handles.append(Line2D([], [], label=text, **style))
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=len(handles) or 1,
        frameon=False,
        fontsize=8.5,
        handletextpad=0.6,
        columnspacing=1.6,
        borderaxespad=0.1,
    )


def _alt(panel: PlottedPanel, source: str) -> str:
    """The numbers of the picture."""
    said = []
    for curve, name in ((OURS, source), (PAPER, "paper"), (NULL, "null model")):
        for system, heights in panel.curves[curve].items():
            parts = [f"{x}: {short(value)}" for x, value in zip(panel.x, heights, strict=True) if not math.isnan(value)]
            said += [f"{system}, {name}, {', '.join(parts)}"] if parts else []
    return f"{panel.full_title}. {caption(panel, source)} {'; '.join(said)}."


def _colour(look: int) -> str:
    return str(PALETTE[look % len(PALETTE)])
