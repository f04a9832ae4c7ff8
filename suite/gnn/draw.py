"""Draw an exchange plan as text: the rows of H that each block row of A^T needs (paper, Figures 1 and 2)."""

from __future__ import annotations

import numpy as np

from suite.gnn.plan import ExchangePlan
from suite.schedule.draw import columns

SHADES = ".:-=+*#%@"  # from no needed column in a cell to all of them
MAX_LISTED = 16  # parts, or processes, that a table lists one by one


def chart(plan: ExchangePlan, width: int = 64) -> str:
    """One line per block row of A^T: its columns in about `width` cells, shaded by the share of nonzero columns."""
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
        lines.append(f"{_ranks_of(plan, i):<6} {'|'.join(parts)}")
    return "\n".join(lines)


def _ranks_of(plan: ExchangePlan, row: int) -> str:
    """The ranks that hold a block row, as P0 or P0-1."""
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
    """Rows that each block row needs from each other, and the rows, entries and stages of every process."""
    volumes, placement = plan.volumes, plan.placement
    k = placement.parts
    sections = [
        f"{plan.vertices} vertices, {plan.matrix.nnz} entries, {k} parts x {placement.replication}: "
        f"{volumes.total} rows sent, {volumes.oblivious().total} by the sparsity-oblivious exchange"
    ]
    if k <= MAX_LISTED:
        replicated = placement.replication > 1
        rows = [["needs rows of", *(f"part {q}" for q in range(k))]]
        for i in range(k):
            cells = [
                f"{volumes.needed[i, q]}" + (f" by column {placement.columns[i, q]}" if replicated else "")
                for q in range(k)
            ]
            rows.append([f"part {i}", *("own" if i == q else cells[q] for q in range(k))])
        sections.append(columns(rows))
    if placement.processes <= MAX_LISTED:
        rows = [["process", "vertices", "entries", "sends", "receives", "stages"]]
        for rank in range(placement.processes):
            row, _ = placement.coordinates(rank)
            numbers = (volumes.rows[row], volumes.entries[rank], volumes.send[rank], volumes.receive[rank])
            rows.append([f"P{rank}", *map(str, numbers), " ".join(map(str, placement.stages(rank)))])
        sections.append(columns(rows))
    send = volumes.send
    sections.append(
        f"busiest sender {send.max()} rows, mean {send.mean():.1f} rows, imbalance {volumes.imbalance:.1f} %"
    )
    return "\n\n".join(sections)
