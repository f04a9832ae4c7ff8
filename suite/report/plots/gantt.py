"""Gantt chart of one batch: a row per rank, a box per span, with microbatch numbers.

A number carries a prime for each stage before its own on the rank, as in text drawings (suite.schedule.draw).

The SVG is written by hand. A chart of a thousand named boxes needs tooltips and text that scales with the page, and a
plotting library would take longer for it than for the rest of the page.
"""

from __future__ import annotations

import math
from xml.etree import ElementTree

from suite.core.grid import Grid
from suite.core.trace import BACKWARD, EVALUATE, FORWARD, WAIT, WEIGHT, Span, Trace, chunks_of
from suite.core.units import si
from suite.report.plots.figure import COLOURS, OTHER

SHORTEST = 1e-12  # seconds; a shorter batch has no width
MOST = 4000  # boxes in one picture; more are not visible and scroll slowly
IDLE = "#7f899347"  # waiting is pale on white and on black
_WIDTH, _LEFT, _RIGHT, _ROW, _BOX, _TOP = 1000.0, 58.0, 30.0, 26.0, 20.0, 6.0
_DIGIT = 6.4  # width of one digit at the size that style.css gives numbers
_NUMBERED = frozenset({FORWARD, BACKWARD, WEIGHT, EVALUATE})


def colour(category: str) -> str:
    return IDLE if category == WAIT else COLOURS.get(category, OTHER)


def window(trace: Trace, most: int = MOST) -> tuple[list[Span], float]:
    """The first spans by start, at most `most` and MOST, and the end of the last one in seconds."""
    spans = sorted(trace, key=lambda span: (span.start, span.rank))[: min(most, MOST)]
    return spans, max((span.end for span in spans), default=0.0)


def gantt(trace: Trace, grid: Grid, label: str, most: int = MOST) -> str:
    """Chart of the first `most` spans of a trace as an `<svg>` element of a page."""
    spans, end = window(trace, most)
    ranks = {rank: row for row, rank in enumerate(sorted({span.rank for span in spans}))}
    chunks = chunks_of(trace)
    height = _TOP + _ROW * len(ranks) + 26
    root = ElementTree.Element("svg", {"viewBox": f"0 0 {_WIDTH:g} {height:g}", "class": "gantt", "role": "img"})
    root.set(
        "aria-label",
        f"One batch of {label} on grid {grid}: {len(ranks)} ranks, {len(trace)} spans, {si(trace.makespan, 's')}.",
    )
    scale = (_WIDTH - _LEFT - _RIGHT) / end if end > SHORTEST else 0.0
    foot = _TOP + _ROW * len(ranks)
    for time in ticks(end):
        x = f"{_LEFT + time * scale:.1f}"
        ElementTree.SubElement(root, "line", {"x1": x, "x2": x, "y1": "0", "y2": f"{foot:g}", "class": "tick"})
        _text(root, x, foot + 16, si(time, "s"), "middle")
    for rank, row in ranks.items():
        _text(root, f"{_LEFT - 8:g}", _TOP + _ROW * row + _BOX / 2 + 4, f"rank {rank}", "end")
    # idle time first, so that it hides no op
    for span in sorted(spans, key=lambda span: (span.category != WAIT, span.start)):
        chunk = 0 if span.op is None else chunks[span.rank, span.op.stage]
        _box(root, span, _TOP + _ROW * ranks[span.rank], scale, "'" * chunk)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def ticks(end: float) -> list[float]:
    """Round times from 0 to `end`, at most nine."""
    if end <= SHORTEST:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(end / 8))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= end / 8)
    return [index * step for index in range(int(end / step * (1 + 1e-9)) + 1)]


def _box(root: ElementTree.Element, span: Span, y: float, scale: float, primes: str) -> None:
    x, width = _LEFT + span.start * scale, max(span.seconds * scale, 0.2)
    box = ElementTree.SubElement(root, "g", {"class": "box"})
    ElementTree.SubElement(box, "title").text = (
        f"rank {span.rank}: {span.category}{'' if span.op is None else f' {span.op}'}, "
        f"{si(span.seconds, 's')} from {si(span.start, 's')}"
    )
    place = {"x": f"{x:.1f}", "y": f"{y:g}", "width": f"{width:.1f}", "height": f"{_BOX:g}"}
    ElementTree.SubElement(box, "rect", place, fill=colour(span.category))
    if span.op is not None and span.category in _NUMBERED:
        number = f"{span.op.index}{primes}"
        if width >= _DIGIT * len(number) + 3:
            style = "dark" if span.category in (BACKWARD, WEIGHT) else "pale"
            _text(box, f"{x + width / 2:.1f}", y + _BOX / 2 + 4, number, "middle", f"n {style}")


def _text(root: ElementTree.Element, x: str, y: float, text: str, anchor: str, style: str = "") -> None:
    attributes = {"x": x, "y": f"{y:g}", "text-anchor": anchor}
    if style:
        attributes["class"] = style
    ElementTree.SubElement(root, "text", attributes).text = text
