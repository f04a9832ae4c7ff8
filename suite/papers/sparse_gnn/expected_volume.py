"""Expected communication volumes of the published graphs, from smaller stand-ins.

In a random order each neighbour of a vertex is in a given part with probability 1/k, and the part needs the vertex's
row unless it holds none of them. The mean volume depends only on the degrees, and single orders of a large graph
deviate little from it. Volumes of other partitions are counted on a stand-in and scaled to the published size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.core.errors import InvalidRequest
from suite.gnn.plan import Placement, Volumes


def random_order_volumes(degrees: Any, placement: Placement, *, vertices: int, entries: int) -> Volumes:
    """Mean volumes over random orders of a graph with parts of equal size, rounded to integers.

    Args:
        degrees: (n,) degrees of a similar symmetric graph of any size. Only their distribution matters; they are
            scaled to a mean of entries / vertices.
        placement: Process grid.
        vertices: Vertices of the graph.
        entries: Matrix entries of the graph.

    Raises:
        InvalidRequest: The graph has no vertices.
    """
    degrees = np.asarray(degrees, dtype=np.float64)
    if not len(degrees) or vertices < 1:
        raise InvalidRequest(f"a random order of {min(len(degrees), vertices)} vertices", rule="at least 1")
    k = placement.parts
    mean = degrees.mean()
    scaled = degrees * (entries / vertices / mean) if mean else degrees
    not_needed = np.mean((1 - 1 / k) ** scaled) if k > 1 else 1.0
    needed = np.full((k, k), round(vertices / k * (1 - not_needed)))
    np.fill_diagonal(needed, 0)
    part_sizes = np.diff(np.arange(k + 1) * vertices // k)
    return Volumes(needed, part_sizes, np.full((k, k), round(entries / k**2)), placement)


def scale_volumes(volumes: Volumes, *, vertices: int, entries: int) -> Volumes:
    """Volumes of a similar graph of another size: rows scale with the vertices, blocks with the entries."""
    rows, nonzeros = volumes.rows.sum(), volumes.nonzeros.sum()
    by_rows, by_entries = vertices / rows, entries / nonzeros if nonzeros else 0.0
    return Volumes(
        np.rint(volumes.needed * by_rows).astype(np.int64),
        np.rint(volumes.rows * by_rows).astype(np.int64),
        np.rint(volumes.nonzeros * by_entries).astype(np.int64),
        volumes.placement,
    )
