"""Base of all generated graphs: stable random numbers, random edges, and drawn attributes.

Random numbers come from the generator's raw stream, with one stream per purpose. numpy keeps the raw stream across
releases, but not its distributions, so a seed gives the same graph for years. Separate streams for edges, features and
parts keep each unchanged when another changes.

Every generated graph is symmetric, without self loops, of weight 1. Vertices are numbered at random, so a system that
divides rows into blocks meets a random order. The number of edges is exact: duplicates are drawn again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from suite.config.base import Amount, Count, Size
from suite.core.errors import refuse
from suite.data.graphs.graph import RANDOM, Graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROUNDS = 64  # of drawing, until enough edges are different; a graph that needs more has hardly others left
# widths of Amazon and Protein, whose features and labels are arbitrary in the paper too (sparse_gnn, Table 3)
FEATURES, CLASSES = 300, 24
TRAIN, VALIDATION = 0.6, 0.2  # shares of the vertices; nothing published depends on them


class Draws:
    """The stream of (seed, purpose)."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),)))

    def raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), np.uint64)

    def uniform(self, count: int) -> Floats:
        """Numbers in [0, 1), multiples of 2^-53."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, high: int, count: int) -> Ints:
        """Integers in 0 .. high - 1."""
        return (self.uniform(count) * high).astype(np.int64)

    def normal(self, count: int) -> Floats:
        """Standard normal numbers, by the inverse distribution at the middle of each cell of `uniform`."""
        return np.asarray(ndtri(self.uniform(count) + 2.0**-54), np.float64)

    def order(self, count: int) -> Ints:
        """Permutation of 0 .. count - 1."""
        return np.argsort(self.raw(count), kind="stable")

    def flat(self, rows: int, columns: int) -> NDArray[np.float32]:
        """[rows, columns] float32, uniform with mean 0 and variance 1."""
        count = rows * columns
        halves = self.raw((count + 1) // 2).view(np.uint32)[:count]
        floats = halves.astype(np.float32)
        floats -= np.float32(2.0**31)
        floats *= np.float32(np.sqrt(12.0) * 2.0**-32)
        return floats.reshape(rows, columns)


def distinct(
    name: str, draw: Callable[[int], tuple[Ints, Ints]], wanted: int, vertices: int, stream: Draws
) -> tuple[Ints, Ints]:
    """`wanted` different undirected edges u < v from the edges that `draw(count)` returns, without self loops.

    Surplus edges are left out at random, from `stream`. Raises InvalidRequest if ROUNDS rounds do not give enough
    different edges: the graph has hardly more.
    """
    what = f"{name}: {wanted} different edges between {vertices} vertices"
    refuse([(wanted > vertices * (vertices - 1) // 2, what, f"degree at most {vertices - 1}")])
    codes: Ints = np.zeros(0, np.int64)
    gain = 1.0  # of a round: different new edges per edge drawn
    for _ in range(ROUNDS):
        missing = wanted - len(codes)
        if missing <= 0:
            break
        count = min(int(missing / gain * 1.05) + 16, 4 * wanted + 16)
        u, v = draw(count)
        low, high = np.minimum(u, v), np.maximum(u, v)
        unique_codes = np.unique(np.concatenate((codes, (low * vertices + high)[low != high])))
        gain = max((len(unique_codes) - len(codes)) / count, 0.01)
        codes = unique_codes
    surplus = len(codes) - wanted
    what = f"{name}: {len(codes)} different edges of {wanted} after {ROUNDS} rounds"
    refuse([(surplus < 0, what, "an edge comes once: a smaller degree, or more vertices")])
    if surplus:
        codes = np.delete(codes, np.argpartition(stream.raw(len(codes)), surplus - 1)[:surplus])
    return codes // vertices, codes % vertices


def between(block: Ints, stream: Draws, count: int) -> tuple[Ints, Ints]:
    """Random edges between vertices of two blocks, at most `count`; `block` has the block of each vertex."""
    u, v = stream.below(len(block), count), stream.below(len(block), count)
    apart = block[u] != block[v]
    return u[apart], v[apart]


def blocks(stream: Draws, vertices: int, *, smallest: float, largest: float, exponent: float) -> Ints:
    """First vertex of each block, and the end: [k + 1], from 0 to `vertices`.

    A block of s vertices has a frequency proportional to s^-exponent between the two sizes. A remainder that is too
    small joins the last block.
    """
    low, high = min(smallest, vertices), min(largest, vertices)
    at = stream.uniform(int(vertices / low) + 1)
    a = 1 - exponent
    if abs(a) < 1e-9:
        sizes = low * (high / low) ** at
    else:
        sizes = (low**a + at * (high**a - low**a)) ** (1 / a)
    ends = np.cumsum(np.maximum(sizes, 1).astype(np.int64))
    ends = ends[ends <= vertices - low]
    return np.concatenate(([0], ends, [vertices]))


@dataclass(frozen=True, kw_only=True)
class RandomAttributes:
    """Settings of features, labels and parts that are drawn.

    Attributes:
        features, classes: Width and number of the random features and labels; 0 for none.
        train, validation: Shares of the vertices; the rest is test.
    """

    features: Amount = FEATURES
    classes: Amount = CLASSES
    train: float = TRAIN
    validation: float = VALIDATION

    def attributes(self, vertices: int, seed: int) -> dict[str, Any]:
        """Parts, random features and random labels, as arguments of Graph; `random` lists what was drawn."""
        drawn = shares(vertices, self.train, self.validation, seed)
        if self.features:
            drawn["features"] = Draws(seed, "features").flat(vertices, self.features)
        if self.classes:
            drawn |= {"labels": Draws(seed, "labels").below(self.classes, vertices), "classes": self.classes}
        return drawn | {"random": tuple(name for name in RANDOM if name in drawn)}


@dataclass(frozen=True, kw_only=True)
class SyntheticGraph(RandomAttributes):
    """Common settings of all generators.

    Attributes:
        vertices: Number of vertices.
        degree: Entries of the adjacency per vertex, both directions counted.
    """

    vertices: Count
    degree: Size

    @property
    def name(self) -> str:
        return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(type(self).__name__))

    @property
    def pairs(self) -> int:
        """Undirected edges."""
        return round(self.vertices * self.degree / 2)

    def provenance(self) -> dict[str, str | int]:
        """Name, vertices, edges in both directions, and a SHA-256 of the arguments, which determine the graph with a
        seed."""
        said = f"{type(self).__name__} {sorted(asdict(self).items())}"
        digest = hashlib.sha256(said.encode()).hexdigest()
        return {"name": self.name, "vertices": self.vertices, "edges": 2 * self.pairs, "sha256": digest}

    def load(self, seed: int) -> Graph:
        """The graph of `seed`, with random features and labels."""
        rank = Draws(seed, "names").order(self.vertices)
        u, v = (rank[np.concatenate(ends)] for ends in zip(*self._edges(seed), strict=True))
        both = np.concatenate((u, v)), np.concatenate((v, u))
        return Graph.of(self.name, *both, self.vertices, **self.attributes(self.vertices, seed))

    def _edges(self, seed: int) -> Sequence[tuple[Ints, Ints]]:
        """Ends of the undirected edges, each once, in the order of the generator."""
        raise NotImplementedError


def shares(vertices: int, train: float, validation: float, seed: int) -> dict[str, Any]:
    """Masks of train, validation and test by exact counts. Each vertex is in one, and at least one is in train."""
    legal = 0 < train <= 1 and 0 <= validation <= 1 - train + 1e-12
    refuse([(not legal, f"train={train}, validation={validation}", "shares of a whole, the rest is test")])
    order = Draws(seed, "parts").order(vertices)
    first = max(1, round(train * vertices))
    second = min(vertices, first + round(validation * vertices))
    masks = {}
    for part, chosen in (("train", order[:first]), ("validation", order[first:second]), ("test", order[second:])):
        mask = np.zeros(vertices, np.bool_)
        mask[chosen] = True
        masks[part] = mask
    return masks
