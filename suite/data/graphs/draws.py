"""Decides how random numbers of a generated graph are drawn: from the generator's raw stream, one stream per purpose.

numpy keeps the raw stream from release to release, and not what its distributions make of it; a graph drawn today is
the same graph in years. A stream of its own for edges, features and parts keeps each where another changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from suite.core.errors import Refused

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDS = 64  # of drawing, until enough edges are different; a graph that needs more has hardly others left


class Draws:
    """The stream of (seed, purpose)."""

    def __init__(self, seed: int, purpose: str) -> None:
        if seed < 0:
            raise Refused(f"seed={seed}", rule="not negative", legal="0")
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),)))

    def raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), np.uint64)

    def uniform(self, count: int) -> Floats:
        """In [0, 1), multiples of 2^-53."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, high: int, count: int) -> Ints:
        """Integers in 0 .. high - 1."""
        return (self.uniform(count) * high).astype(np.int64)

    def normal(self, count: int) -> Floats:
        """Standard normal, by the inverse of its distribution at the middle of each cell of `uniform`."""
        return np.asarray(ndtri(self.uniform(count) + 2.0**-54), np.float64)

    def order(self, count: int) -> Ints:
        """A permutation of 0 .. count - 1."""
        return np.argsort(self.raw(count), kind="stable")

    def flat(self, rows: int, columns: int) -> NDArray[np.float32]:
        """[rows, columns] float32, uniform of mean 0 and variance 1; half a raw number each."""
        count = rows * columns
        halves = self.raw((count + 1) // 2).view(np.uint32)[:count]
        made = halves.astype(np.float32)
        made -= np.float32(2.0**31)
        made *= np.float32(np.sqrt(12.0) * 2.0**-32)
        return made.reshape(rows, columns)


def distinct(name: str, draw: Callable[[int], tuple[Ints, Ints]], wanted: int, vertices: int) -> tuple[Ints, Ints]:
    """The first `wanted` different undirected edges, without self loops, that `draw(count)` gives: u < v.

    Raises Refused where they do not come together in ROUNDS rounds: the rest of the graph has no such edges.
    """
    if wanted > vertices * (vertices - 1) // 2:
        most = vertices - 1
        raise Refused(
            f"{name}: {wanted} edges between {vertices} vertices", rule=f"degree at most {most}", legal=str(most)
        )
    codes: Ints = np.zeros(0, np.int64)
    for _ in range(ROUNDS):
        missing = wanted - len(codes)
        if missing <= 0:
            break
        u, v = draw(missing + missing // 8 + 16)
        low, high = np.minimum(u, v), np.maximum(u, v)
        codes = np.concatenate((codes, (low * vertices + high)[low != high]))
        first = np.unique(codes, return_index=True)[1]
        codes = codes[np.sort(first)]
    if len(codes) < wanted:
        what = f"{name}: {len(codes)} different edges of {wanted} after {ROUNDS} rounds"
        raise Refused(what, rule="an edge comes once", legal="a smaller degree, or more vertices")
    codes = codes[:wanted]
    return codes // vertices, codes % vertices


def shares(vertices: int, train: float, validation: float, seed: int) -> dict[str, Any]:
    """Masks of train, validation and test by exact counts; a vertex is in one, and at least one is in train."""
    if not (0 < train <= 1 and 0 <= validation <= 1 - train + 1e-12):
        what = f"train={train}, validation={validation}"
        raise Refused(what, rule="shares of a whole, the rest is test", legal="train=0.6, validation=0.2")
    order = Draws(seed, "parts").order(vertices)
    first = max(1, round(train * vertices))
    second = min(vertices, first + round(validation * vertices))
    masks = {}
    for part, chosen in (("train", order[:first]), ("validation", order[first:second]), ("test", order[second:])):
        mask = np.zeros(vertices, np.bool_)
        mask[chosen] = True
        masks[part] = mask
    return masks
