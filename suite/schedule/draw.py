"""Draw a timeline as text: a row per stage, a column per tick.

    stage 0 | F0 F1 .  .  B0 == B1 ==

`==` continues the op to its left, a point is an idle tick; a zero-cost op has no cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.core.op import Op


class Slot(NamedTuple):
    """`op` ran from `start` to `end`, in ticks or seconds."""

    op: Op
    start: float
    end: float


def grid(slots: Sequence[Slot], stages: int, *, tick: float = 1.0, mark: Op | None = None) -> str:
    """The timeline as text; `mark` is set between brackets (the culprit in an error)."""
    end = max((slot.end for slot in slots), default=0.0)
    columns = round(end / tick)
    rows = [["."] * columns for _ in range(stages)]
    for op, start, finish in slots:
        cells = range(round(start / tick), round(finish / tick))
        for position in cells:
            label = f"{op.kind}{op.index}"
            if op == mark:
                label = f"[{label}]"
            rows[op.stage][position] = label if position == cells.start else "="
    width = max((len(cell) for row in rows for cell in row), default=1)
    lines = []
    for stage, row in enumerate(rows):
        cells_text = " ".join((cell * width)[:width] if cell == "=" else cell.ljust(width) for cell in row)
        lines.append(f"stage {stage} | {cells_text}".rstrip())
    return "\n".join(lines)


def chart(slots: Sequence[Slot], stages: int, *, tick: float = 1.0) -> str:
    """The grid with a line below: makespan, and the idle share of each stage."""
    end = max((slot.end for slot in slots), default=0.0)
    busy = [0.0] * stages
    for op, start, finish in slots:
        busy[op.stage] += finish - start
    idle = ", ".join(f"{end - stage_busy:g}" for stage_busy in busy)
    return f"{grid(slots, stages, tick=tick)}\nmakespan {end:g}, idle per stage {idle}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: every column as wide as its widest cell, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
