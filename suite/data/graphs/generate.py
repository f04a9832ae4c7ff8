"""Sources of generated graphs: arguments and a seed determine the whole graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from suite.config.base import Count, Positive, Size
from suite.core.errors import refuse
from suite.data.graphs.communities import AmazonLike, PapersLike, RedditLike
from suite.data.graphs.synthetic import Draws, Floats, Ints, SyntheticGraph, between, blocks, distinct, shares

__all__ = ["RMAT", "AmazonLike", "PapersLike", "Planted", "ProteinLike", "RedditLike"]


@dataclass(frozen=True, kw_only=True)
class RMAT(SyntheticGraph):
    """A recursive matrix: each edge falls into a quadrant of the adjacency at random, level by level.

    Degrees are heavily skewed and many vertices have no edge. The graph is hard to partition, unlike most real graphs.
    Source: Chakrabarti, Zhan, Faloutsos: R-MAT, SDM 2004.

    Attributes:
        vertices: A power of two.
        a, b, c: Probabilities of the first three quadrants. Defaults follow Graph500 (specification, Section 3).
    """

    a: Size = 0.57
    b: Size = 0.19
    c: Size = 0.19

    def __post_init__(self) -> None:
        n, rest = self.vertices, 1 - self.a - self.b - self.c
        power = f"a power of two, such as {1 << (n.bit_length() - 1)}"
        what = f"rmat: a={self.a}, b={self.b}, c={self.c}, rest {rest:.2f}"
        refuse([(n & (n - 1), f"{n} vertices", power), (rest < -1e-9, what, "chances that sum to 1 with the fourth")])

    @property
    def name(self) -> str:
        return "rmat"

    def _edges(self, seed: int) -> Sequence[tuple[Ints, Ints]]:
        stream = Draws(seed, "edges")
        levels = self.vertices.bit_length() - 1

        def draw(count: int) -> tuple[Ints, Ints]:
            u, v = np.zeros(count, np.int64), np.zeros(count, np.int64)
            for _ in range(levels):
                at = stream.uniform(count)
                down = at >= self.a + self.b
                right = ((at >= self.a) & ~down) | (at >= self.a + self.b + self.c)
                u, v = 2 * u + down, 2 * v + right
            return u, v

        return [distinct(self.name, draw, self.pairs, self.vertices, stream)]


@dataclass(frozen=True, kw_only=True)
class Planted(SyntheticGraph):
    """A planted partition whose labels can be learnt: equal blocks with many edges inside and a few between.

    The blocks themselves are the best partition.

    Attributes:
        degree: Sum of inside and outside; it may be left out.
        blocks: Number of blocks, of equal size up to rounding.
        inside, outside: Entries per vertex to the same block, and to other blocks.
        features: Width of the features: the mean of the vertex's label, a vector of length `signal`, plus normal noise
            of variance 1.
        classes: Number of labels; block b has label b mod classes.
        signal: Length of the mean vectors. At 1 and 8 labels, a linear model is right for about 0.38 of the vertices.
            A mean over neighbours, which divides the noise by the square root of their number, is right for over 0.9.
    """

    degree: float = -1.0
    blocks: Count = 64
    inside: Size = 14.0
    outside: Size = 2.0
    features: Count = 32
    classes: Count = 8
    signal: float = 1.0

    def __post_init__(self) -> None:
        other = self.degree not in (-1.0, self.inside + self.outside)
        refuse([(other, f"planted: degree={self.degree}", f"inside + outside, {self.inside + self.outside}")])
        object.__setattr__(self, "degree", self.inside + self.outside)

    @property
    def pairs(self) -> int:
        return sum(self._counts())

    def _counts(self) -> tuple[int, int]:
        return round(self.vertices * self.inside / 2), round(self.vertices * self.outside / 2)

    def _starts(self) -> Ints:
        """First vertex of each block, and the end: [blocks + 1]."""
        return np.arange(self.blocks + 1) * self.vertices // self.blocks

    def _edges(self, seed: int) -> Sequence[tuple[Ints, Ints]]:
        stream, n, starts = Draws(seed, "edges"), self.vertices, self._starts()
        block = np.repeat(np.arange(self.blocks), np.diff(starts))

        def near(count: int) -> tuple[Ints, Ints]:
            u = stream.below(n, count)
            own_block = block[u]
            return u, starts[own_block] + (stream.uniform(count) * np.diff(starts)[own_block]).astype(np.int64)

        inside, outside = self._counts()
        far = partial(between, block, stream)
        return [distinct(self.name, near, inside, n, stream), distinct(self.name, far, outside, n, stream)]

    def attributes(self, vertices: int, seed: int) -> dict[str, Any]:
        """Parts, features and labels of the graph of `seed`. They belong to it and are not marked as random."""
        labels = np.empty(vertices, np.int64)
        names = Draws(seed, "names").order(vertices)
        labels[names] = np.repeat(np.arange(self.blocks) % self.classes, np.diff(self._starts()))
        stream = Draws(seed, "features")
        means: Floats = stream.normal(self.classes * self.features).reshape(self.classes, self.features)
        means *= self.signal / np.linalg.norm(means, axis=1, keepdims=True)
        features = stream.normal(vertices * self.features).reshape(vertices, self.features)
        features += means[labels]
        parts = shares(vertices, self.train, self.validation, seed)
        return {**parts, "features": features.astype(np.float32), "labels": labels, "classes": self.classes}


@dataclass(frozen=True, kw_only=True)
class ProteinLike(SyntheticGraph):
    """Stand-in for the paper's Protein graph: proteins, joined if they are similar.

    Inside a block, the pairs of the smallest distance in its order are edges, equally in all blocks: a band. The
    counts and the small number of cut edges are published. The block sizes, between 2.5 and 20 degrees, and the band
    are guesses. A part should hold several blocks: more than about vertices / (20 * degree) parts cut bands.

    Attributes:
        degree: Entries per vertex: 242 in the published graph (sparse_gnn, Table 3), which is large for a laptop, so
            there is no default.
        smallest, largest: Vertices of a block (a family), in degrees. Logarithms of sizes are uniform between them.
        bridges: Edges between blocks, per block. With two, a partition of the published counts into 256 parts would
            have some thousands of edges to cut, as the paper's partitions do (Section 7.1.2).
    """

    smallest: Positive = 2.5
    largest: Positive = 20.0
    bridges: Size = 2.0

    def _edges(self, seed: int) -> Sequence[tuple[Ints, Ints]]:
        n, stream = self.vertices, Draws(seed, "edges")
        low, high = max(2.0, self.smallest * self.degree), max(2.0, self.largest * self.degree)
        starts = blocks(Draws(seed, "shape"), n, smallest=low, largest=high, exponent=1.0)
        sources = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        bridges = min(round(self.bridges * (len(starts) - 1)), self.pairs) if len(starts) > 2 else 0
        ends = [distinct(self.name, partial(between, sources, stream), bridges, n, stream)]
        missing, places, distance = self.pairs - bridges, np.arange(n), 0
        while missing:
            distance += 1
            first = places[: n - distance]
            first = first[sources[: n - distance] == sources[distance:]]
            what = f"{self.name}: blocks of at most {np.diff(starts).max()} vertices lack {missing} edges"
            refuse([(not len(first), what, f"room for degree={self.degree}, by a larger `smallest`")])
            if len(first) > missing:  # of the last distance, some by chance
                first = first[stream.order(len(first))[:missing]]
            ends.append((first, first + distance))
            missing -= len(first)
        return ends
