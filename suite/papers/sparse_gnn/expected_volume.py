"""Expected communication volumes of the published graphs, from smaller stand-ins.

In a random order the neighbours of a vertex lie anywhere, so a part needs its row unless none of its neighbours is
there. Degrees alone decide the mean, and one order of a large graph differs from it by little. The volumes of any other
order are counted on a stand-in (suite.gnn.plan) and scaled to the published size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.core.errors import InvalidRequest
from suite.gnn.plan import Placement, Volumes


def by_chance(degrees: Any, placement: Placement, *, vertices: int, entries: int) -> Volumes:
    """Of `vertices` vertices in parts of equal size, `entries` entries between them, in the mean over random orders.

    degrees: (n,) of a symmetric graph of the same kind, of any size: their distribution counts, and is stretched to the
    mean of entries / vertices. Rows and entries are rounded. Raises InvalidRequest for a graph without vertices.
    """
    degrees = np.asarray(degrees, dtype=np.float64)
    if not len(degrees) or vertices < 1:
        raise InvalidRequest(f"a random order of {min(len(degrees), vertices)} vertices", rule="at least 1")
    k = placement.parts
    mean = degrees.mean()
    stretched = degrees * (entries / vertices / mean) if mean else degrees
    absent = np.mean((1 - 1 / k) ** stretched) if k > 1 else 1.0
    needed = np.full((k, k), round(vertices / k * (1 - absent)))
    np.fill_diagonal(needed, 0)
    return Volumes(needed, _even(vertices, k), np.full((k, k), round(entries / k**2)), placement)


def scaled(volumes: Volumes, *, vertices: int, entries: int) -> Volumes:
    """The volumes of a graph of the same kind with another number of vertices and entries: rows in proportion to its
    vertices, blocks in proportion to its entries."""
    rows, nonzeros = volumes.rows.sum(), volumes.nonzeros.sum()
    by_rows, by_entries = vertices / rows, entries / nonzeros if nonzeros else 0.0
    return Volumes(
        np.rint(volumes.needed * by_rows).astype(np.int64),
        np.rint(volumes.rows * by_rows).astype(np.int64),
        np.rint(volumes.nonzeros * by_entries).astype(np.int64),
        volumes.placement,
    )


def _even(vertices: int, k: int) -> Any:
    return np.diff(np.arange(k + 1) * vertices // k)
