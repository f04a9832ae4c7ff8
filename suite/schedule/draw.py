"""Draw a timeline as text: a row per stage, a column per tick.

    stage 0 | F0 F1 .  .  B0 == B1 ==

`==` continues the op to its left. A dot is an idle tick. An op without cost has no cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.core.op import Op, Place


class Slot(NamedTuple):
    """Time slot of `op`, from `start` to `end` in ticks or seconds."""

    op: Op
    start: float
    end: float


def grid(
    slots: Sequence[Slot], ranks: int, *, tick: float = 1.0, mark: Op | None = None, place: Place | None = None
) -> str:
    """Draw the timeline as text.

    Args:
        tick: Duration of a column.
        mark: Op to draw in brackets: the cause of an error.
        place: Place of any rank of a pipeline with several chunks per rank. A chunk's ops carry a prime for each chunk
            before it on the rank: F3, F3'.
    """
    place = place or Place(0, ranks)
    end = max((slot.end for slot in slots), default=0.0)
    columns = round(end / tick)
    rows = [["."] * columns for _ in range(ranks)]
    for op, start, finish in slots:
        cells = range(round(start / tick), round(finish / tick))
        for position in cells:
            label = f"{op.kind}{op.index}" + "'" * place.chunk_of(op.stage)
            if op == mark:
                label = f"[{label}]"
            rows[place.rank_of(op.stage)][position] = label if position == cells.start else "="
    width = max((len(cell) for row in rows for cell in row), default=1)
    lines = []
    title = "stage" if place.stages == ranks else "rank"
    for rank, row in enumerate(rows):
        cells_text = " ".join((cell * width)[:width] if cell == "=" else cell.ljust(width) for cell in row)
        lines.append(f"{title} {rank} | {cells_text}".rstrip())
    return "\n".join(lines)


def chart(slots: Sequence[Slot], ranks: int, *, tick: float = 1.0, place: Place | None = None) -> str:
    """Draw the timeline, followed by a line with the makespan and the idle time per rank."""
    place = place or Place(0, ranks)
    end = max((slot.end for slot in slots), default=0.0)
    busy = [0.0] * ranks
    for op, start, finish in slots:
        busy[place.rank_of(op.stage)] += finish - start
    idle = ", ".join(f"{end - rank_busy:g}" for rank_busy in busy)
    title = "stage" if place.stages == ranks else "rank"
    return f"{grid(slots, ranks, tick=tick, place=place)}\nmakespan {end:g}, idle per {title} {idle}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Table as text. The first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
