"""Decides how a panel is drawn: ours as filled markers, the paper's points hollow around them, the null model pale.

Points stand at equal distances, by their names: most are counts that double, some are phases that have no order, and
only neighbours that are numbers in order are joined by a line. Colour stands for the system, and so does shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from suite.core.units import si
from suite.report.figure import PALETTE, clean, drawable, drawing, finished
from suite.report.panels import CALIBRATED, NULL, OURS, PAPER, UNITS, Panel, caption
from suite.report.svg import INK
from suite.report.verdicts import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours come in eights and shapes in sevens: two systems that share one of them do not share the other
SHAPES = {"o": "●", "s": "■", "^": "▲", "v": "▼", "P": "✚", "X": "✕", "*": "★"}
_WIDE = 72  # characters of the points' names that fit below a picture
_STEEP = 10  # values that span more are drawn on a log scale; shares never are
_NUMBERED = re.compile(r"([^0-9]*)([0-9]{1,15}(?:\.[0-9]{1,15})?)([^0-9]*)")


def legend(panel: Panel, looks: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """(colour, shape and name) of each system. looks: a number by system, the same in all pictures of an experiment."""
    return tuple((_colour(looks[name]), f"{SHAPES[_shape(looks[name])]} {name}") for name in panel.systems)


def pieces(x: Sequence[str]) -> list[list[int]]:
    """The points that a line may join: neighbours that are numbers in order, with the same words around them."""
    found: list[list[int]] = []
    last: tuple[str, str, float] | None = None
    rising: bool | None = None  # none while a piece has one point
    for index, name in enumerate(x):
        match = _NUMBERED.fullmatch(name)
        here = (match[1], match[3], float(match[2])) if match else None
        joined = bool(here and last and here[:2] == last[:2] and here[2] != last[2])
        if joined and here and last and rising in {None, here[2] > last[2]}:
            rising = here[2] > last[2]
            found[-1].append(index)
        else:
            rising = None
            found.append([index])
        last = here
    return found


def picture(panel: Panel, looks: Mapping[str, int], source: str, salt: str) -> str:
    """The panel as an svg."""
    systems, count = panel.systems, len(panel.x)
    runs = pieces(panel.x)
    drawn = {(c, s): drawable(panel.curves[c][s]) for c in (NULL, OURS, PAPER) for s in panel.curves[c]}
    flat = [value for curve in drawn.values() for value in curve if math.isfinite(value)]
    # side by side where several systems share a place, or where no line leads the eye from one to the next
    apart = 0.15 if len(runs) == count > 1 else 0.09 if _crowded(drawn, count) else 0.0
    apart = min(apart, 0.5 / max(len(systems), 1))
    bottom = 0.46 if panel.axis else 0.28
    with drawing(2.64 + bottom, left=0.62, top=0.36, bottom=bottom) as (fig, ax):
        for (curve, system), heights in drawn.items():
            shift = apart * (systems.index(system) - (len(systems) - 1) / 2)
            style = _style(curve, _colour(looks[system]), _shape(looks[system]))
            [line] = ax.plot(*_broken(runs, heights, shift), **style)
            line.set(gid=f"{curve}-{systems.index(system)}", clip_on=False)
        for system, index in sorted(panel.calibrated):
            at = [drawn[curve, system][index] for curve in (PAPER, OURS) if system in panel.curves[curve]]
            shift = apart * (systems.index(system) - (len(systems) - 1) / 2)
            height = next(filter(math.isfinite, at), math.nan)
            [mark] = ax.plot(index + shift, height, **_style(CALIBRATED, INK, "D"))
            mark.set(gid=f"{CALIBRATED}-{systems.index(system)}-{index}", clip_on=False)
        _axes(ax, panel, flat)
        _key(ax, panel, source)
        return finished(fig, salt, _alt(panel, source))


def _broken(runs: Sequence[Sequence[int]], heights: Sequence[float], shift: float) -> tuple[list[float], list[float]]:
    """x and y of a curve that is broken between the runs."""
    points = [point for run in runs for point in (*((index + shift, heights[index]) for index in run), (math.nan,) * 2)]
    return [x for x, _ in points], [y for _, y in points]


def _style(curve: str, colour: str, shape: str) -> dict[str, Any]:
    if curve == OURS:
        size = 5 if shape in "os^v" else 6.5
        return {"color": colour, "marker": shape, "markersize": size, "markeredgewidth": 0, "lw": 1.4, "zorder": 3}
    if curve == NULL:
        return {"color": colour, "marker": "_", "markersize": 7, "linewidth": 1.5, "linestyle": ":", "alpha": 0.6}
    hollow = {"marker": shape, "markerfacecolor": "none", "linestyle": "none", "zorder": 4}
    if curve == PAPER:
        return {**hollow, "markeredgecolor": colour, "markersize": 9.5, "markeredgewidth": 1.4}
    return {**hollow, "markeredgecolor": colour, "markersize": 11, "markeredgewidth": 0.9}


def _crowded(drawn: Mapping[tuple[str, str], Sequence[float]], count: int) -> bool:
    """Whether two systems have the same value at one point, to two digits."""
    for curve in (OURS, PAPER):
        for index in range(count):
            here = [f"{heights[index]:.2g}" for (c, _), heights in drawn.items() if c == curve]
            here = [text for text in here if text != "nan"]
            if len(set(here)) < len(here):
                return True
    return False


def _axes(ax: Axes, panel: Panel, flat: Sequence[float]) -> None:
    low, high, count = min(flat, default=0.0), max(flat, default=1.0), len(panel.x)
    steep = low > 0 and high / low >= _STEEP and panel.unit != "percent"
    if steep:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.35, high * 1.35)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        if low >= 0:
            ax.set_ylim(0, high * 1.1 or 1.0)
        else:
            ax.axhline(0, color=INK, linewidth=0.7)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, "B") if panel.unit == "B" else f"{value:g}"))
    unit = "" if panel.unit == "B" else clean(UNITS.get(panel.unit, panel.unit))
    ax.set_ylabel(", ".join([unit] * bool(unit) + ["log scale"] * steep))
    ax.set_xlabel(clean(panel.axis, 60))
    names = [clean(name, 14) for name in panel.x]
    widest = max(((len(a) + len(b)) / 2 + 1 for a, b in pairwise(names)), default=0.0)
    every = max(1, math.ceil(count * widest / _WIDE))
    ax.set_xticks(range(0, count, every), names[::every])
    ax.set_xlim(-0.45, count - 0.55)


def _key(ax: Axes, panel: Panel, source: str) -> None:
    """What the shapes mean, in ink above the picture: colours stand for systems, and those below it."""
    told = (
        (OURS, source, "o"),
        (PAPER, "printed in the paper", "o"),
        (NULL, "null model", "_"),
        (CALIBRATED, "calibrated", "D"),
    )
    has = {curve: bool(panel.curves[curve]) for curve in (OURS, PAPER, NULL)} | {CALIBRATED: bool(panel.calibrated)}
    joined = any(len(run) > 1 for run in pieces(panel.x))
    handles = []
    for curve, text, shape in told:
        if has[curve]:
            style = _style(curve, INK, shape) | ({} if joined or curve != OURS else {"linestyle": "none"})
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


def _alt(panel: Panel, source: str) -> str:
    """The numbers of the picture."""
    said = []
    for curve, name in ((OURS, source), (PAPER, "paper"), (NULL, "null model")):
        for system, heights in panel.curves[curve].items():
            parts = [f"{x}: {short(value)}" for x, value in zip(panel.x, heights, strict=True) if not math.isnan(value)]
            said += [f"{system}, {name}, {', '.join(parts)}"] if parts else []
    return f"{panel.title}. {caption(panel, source)} {'; '.join(said)}."


def _colour(look: int) -> str:
    return str(PALETTE[look % len(PALETTE)])


def _shape(look: int) -> str:
    return list(SHAPES)[look % len(SHAPES)]
