"""Picture of relative errors: a row per group, with its mean, its median and the mean of a null model.

The SVG is written by hand, as for timelines (suite.report.plots.gantt): its rows have tooltips, and a plotting library
would take longer for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from suite.report.plots.figure import clean

MOST = 60.0  # percent; larger errors are clipped, with an arrow and their number
BAR, DOT = "#8fb3d9", "#2f74b5"  # mean absolute error, median signed error
NULL = "#e0912f"  # mean error of the best null model
_WIDTH, _LEFT, _RIGHT, _ROW, _BOX, _TOP = 1000.0, 190.0, 280.0, 24.0, 12.0, 6.0
_STEP = 10.0  # percent between ticks
_DOT, _ARROW = 4.5, 5.0  # radius of a dot, and half the height of an arrow
_NAME = 30  # characters of a group's name


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors of a group in percent.

    Attributes:
        mean: Mean absolute error.
        median: Median signed error.
        null: Mean absolute error of the best null model.
    """

    name: str
    cells: int
    mean: float
    median: float
    null: float

    @property
    def text(self) -> str:
        """The numbers of the row as a sentence."""
        return (
            f"{clean(self.name, 80)}: {self.cells} cells, mean error {self.mean:.1f} %, median {self.median:+.1f} %, "
            f"null model {self.null:.1f} %"
        )

    @property
    def clipped(self) -> str:
        """The numbers beyond the axis; empty if all are on it."""
        numbers = (("mean", self.mean, ""), ("median", self.median, "+"), ("null", self.null, ""))
        return ", ".join(f"{name} {round(value):{sign}.4g} %" for name, value, sign in numbers if abs(value) > MOST)


def error_bars(rows: Sequence[ErrorRow], title: str) -> str:
    """The rows in their order as an `<svg>` element of a page, with `title` and all numbers as its name."""
    foot = _TOP + _ROW * len(rows)
    root = ElementTree.Element("svg", {"viewBox": f"0 0 {_WIDTH:g} {foot + 40:g}", "class": "errors", "role": "img"})
    root.set("aria-label", clean(f"{title} {'; '.join(row.text for row in rows)}.", 8000))
    low = lowest(rows)
    for tick in _ticks(low):
        x = f"{_place(tick, low):.2f}"
        style = "tick zero" if tick == 0 else "tick"
        ElementTree.SubElement(root, "line", {"x1": x, "x2": x, "y1": "0", "y2": f"{foot:g}", "class": style})
        _text(root, float(x), foot + 15, f"{tick:g} %", "middle")
    middle = (_place(low, low) + _place(MOST, low)) / 2
    _text(root, middle, foot + 33, "simulated ÷ measured throughput − 1", "middle")
    for number, row in enumerate(rows):
        _draw(root, row, _TOP + _ROW * (number + 0.5), low)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def lowest(rows: Sequence[ErrorRow]) -> float:
    """Lower end of the axis in percent: the tick below the least median, at least -MOST."""
    least = min((row.median for row in rows), default=0.0)
    return max(-MOST, min(-_STEP, _STEP * math.floor(least / _STEP)))


def _ticks(low: float) -> list[float]:
    return [_STEP * step for step in range(round(low / _STEP), round(MOST / _STEP) + 1)]


def _place(percent: float, low: float) -> float:
    """x of an error within the axis."""
    within = min(max(percent, low), MOST)
    return _LEFT + (within - low) / (MOST - low) * (_WIDTH - _LEFT - _RIGHT)


def _draw(root: ElementTree.Element, row: ErrorRow, y: float, low: float) -> None:
    group = ElementTree.SubElement(root, "g", {"class": "row"})
    ElementTree.SubElement(group, "title").text = row.text
    _text(group, _LEFT - 10, y + 4, clean(row.name, _NAME), "end")
    start, end = _place(0, low), _place(row.mean, low)
    bar = {"x": f"{start:.2f}", "y": f"{y - _BOX / 2:g}", "width": f"{end - start:.2f}", "height": f"{_BOX:g}"}
    ElementTree.SubElement(group, "rect", bar, fill=BAR)
    if row.null <= MOST:
        x = f"{_place(row.null, low):.2f}"
        line = {"x1": x, "x2": x, "y1": f"{y - 9:g}", "y2": f"{y + 9:g}", "stroke": NULL, "stroke-width": "2.5"}
        ElementTree.SubElement(group, "line", line)
    if abs(row.median) <= MOST:
        dot = {"cx": f"{_place(row.median, low):.2f}", "cy": f"{y:g}", "r": f"{_DOT:g}", "fill": DOT}
        ElementTree.SubElement(group, "circle", dot)
    if row.clipped:
        tip = _WIDTH - _RIGHT + 14
        base, point = (tip - 8, tip) if max(row.mean, row.median, row.null) > MOST else (tip, tip - 8)
        arrow = f"M{base:g} {y - _ARROW:g}L{point:g} {y:g}L{base:g} {y + _ARROW:g}z"
        ElementTree.SubElement(group, "path", {"d": arrow, "fill": DOT})
        _text(group, tip + 6, y + 4, row.clipped, "start")


def _text(root: ElementTree.Element, x: float, y: float, text: str, anchor: str) -> None:
    ElementTree.SubElement(root, "text", {"x": f"{x:.2f}", "y": f"{y:g}", "text-anchor": anchor}).text = text
