"""Draw an exchange plan as text: the rows of H that each block row of A^T needs (paper, Figures 1 and 2)."""

from __future__ import annotations

import numpy as np

from suite.gnn.plan import ExchangePlan
from suite.schedule.draw import columns

SHADES = ".:-=+*#%@"  # share of a cell's columns that are needed, the first none and the last all
MOST = 16  # parts that a table tells one by one


def chart(plan: ExchangePlan, width: int = 64) -> str:
    """A line per block row of A^T: its columns, `width` cells over all parts, shaded by how many have an entry."""
    k, offsets = plan.placement.parts, plan.offsets
    # at least one cell per part
    cells = [max(1, round(width * (offsets[q + 1] - offsets[q]) / max(1, plan.vertices))) for q in range(k)]
    head = "  " + "|".join(f"H{q}"[:cell].ljust(cell) for q, cell in enumerate(cells))
    lines = [" " * 6 + head[1:]]
    for i in range(k):
        parts = []
        for q, cell in enumerate(cells):
            size = offsets[q + 1] - offsets[q]
            needed = np.zeros(size)
            needed[plan.needs(i, q)] = 1
            parts.append("".join(_shade(piece) for piece in np.array_split(needed, cell)))
        lines.append(f"{_name(plan, i):<6} {'|'.join(parts)}")
    return "\n".join(lines)


def _name(plan: ExchangePlan, row: int) -> str:
    """The processes of a block row."""
    ranks = plan.placement.row(row)
    return f"P{ranks[0]}" if len(ranks) == 1 else f"P{ranks[0]}-{ranks[-1]}"


def _shade(piece: np.ndarray) -> str:
    if not len(piece):
        return " "
    share = float(piece.mean())
    if share in (0.0, 1.0):
        return SHADES[-1] if share else SHADES[0]
    return SHADES[1 + int(share * (len(SHADES) - 2))]


def tables(plan: ExchangePlan) -> str:
    """Rows that each block row needs of each other, and what every process sends, receives and multiplies."""
    volumes, placement = plan.volumes, plan.placement
    k = placement.parts
    whole = volumes.oblivious()
    table_rows = [
        f"{plan.vertices} vertices, {plan.matrix.nnz} entries, {k} parts x {placement.replication}: "
        f"{volumes.total} rows travel, {whole.total} by an exchange that does not look"
    ]
    if k <= MOST:
        owner = placement.columns
        of = placement.replication > 1
        rows = [["needs rows of", *(f"part {q}" for q in range(k))]]
        for i in range(k):
            cells = [f"{volumes.needed[i, q]}" + (f" by column {owner[i, q]}" if of else "") for q in range(k)]
            rows.append([f"part {i}", *("own" if i == q else cells[q] for q in range(k))])
        table_rows.append(columns(rows))
    if placement.processes <= MOST:
        rows = [["process", "vertices", "entries", "sends", "receives", "stages"]]
        for rank in range(placement.processes):
            row, _ = placement.place(rank)
            numbers = (volumes.rows[row], volumes.entries[rank], volumes.send[rank], volumes.receive[rank])
            rows.append([f"P{rank}", *map(str, numbers), " ".join(map(str, placement.stages(rank)))])
        table_rows.append(columns(rows))
    send = volumes.send
    table_rows.append(f"sends at most {send.max()} rows, {send.mean():.1f} on average: {volumes.imbalance:.1f} % more")
    return "\n\n".join(table_rows)
