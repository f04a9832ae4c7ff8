"""Volumes of parts that need equally many rows of each other, for sums by hand."""

from __future__ import annotations

import numpy as np

from suite.gnn.plan import Placement, Volumes


def equal(parts: int, cut: int, *, rows: int = 100, entries: int = 10, replication: int = 1) -> Volumes:
    """Parts of `rows` vertices that each need `cut` rows of every other; `entries` in each block."""
    needed = np.full((parts, parts), cut)
    np.fill_diagonal(needed, 0)
    blocks = np.full((parts, parts), entries)
    return Volumes(needed, np.full(parts, rows), blocks, Placement(parts, replication))
