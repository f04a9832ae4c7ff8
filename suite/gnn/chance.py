"""Decides what a random order of the vertices asks for, from their degrees alone: the volumes that are to be expected.

In a random order the neighbours of a vertex lie anywhere, so a part needs its row unless none of its neighbours is
there. Nothing but degrees decides that, and a drawn order of a large graph differs from the mean by little; so a graph
that is too dense to be drawn still has its volumes. Of a small graph they are counted (suite.gnn.plan).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.core.errors import Refused
from suite.gnn.plan import Placement, Volumes


def by_chance(degrees: Any, placement: Placement, *, vertices: int, entries: int) -> Volumes:
    """Of `vertices` vertices in parts of equal size, `entries` entries between them, in the mean over random orders.

    degrees: (n,) of a symmetric graph of the same kind, of any size: their distribution counts, and is stretched to the
    mean of entries / vertices. Rows and entries are rounded. Raises Refused for a graph without vertices.
    """
    degrees = np.asarray(degrees, dtype=np.float64)
    if not len(degrees) or vertices < 1:
        raise Refused(f"a random order of {min(len(degrees), vertices)} vertices", rule="at least 1")
    k = placement.parts
    mean = degrees.mean()
    stretched = degrees * (entries / vertices / mean) if mean else degrees
    absent = np.mean((1 - 1 / k) ** stretched) if k > 1 else 1.0
    needed = np.full((k, k), round(vertices / k * (1 - absent)))
    np.fill_diagonal(needed, 0)
    return Volumes(needed, _even(vertices, k), np.full((k, k), round(entries / k**2)), placement)


def _even(vertices: int, k: int) -> Any:
    return np.diff(np.arange(k + 1) * vertices // k)
