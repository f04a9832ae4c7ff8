"""Sources of generated graphs: arguments and a seed determine the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from suite.core.errors import Broken, refuse
from suite.data.graphs.banded import ProteinLike
from suite.data.graphs.communities import AmazonLike, PapersLike, RedditLike
from suite.data.graphs.graph import Graph
from suite.data.graphs.stable_rng import Draws, Floats, Ints, distinct
from suite.data.graphs.synthetic_attributes import SyntheticGraph, shares

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

    a: float = 0.57
    b: float = 0.19
    c: float = 0.19

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        near = 1 << (self.vertices.bit_length() - 1)
        yield self.vertices & (self.vertices - 1), f"{self.vertices} vertices", f"a power of two, such as {near}"
        chances = (self.a, self.b, self.c, 1 - self.a - self.b - self.c + 1e-9)
        yield (
            min(chances) < 0,
            f"a={self.a}, b={self.b}, c={self.c}, rest {chances[3]:.2f}",
            "chances that sum to 1 with the fourth",
        )

    @property
    def name(self) -> str:
        return "rmat"

    def _edges(self, seed: int) -> tuple[Ints, Ints]:
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

        return self._renamed(*distinct(self.name, draw, self.pairs, self.vertices, stream), seed)


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
    blocks: int = 64
    inside: float = 14.0
    outside: float = 2.0
    features: int = 32
    classes: int = 8
    signal: float = 1.0

    def __post_init__(self) -> None:
        other = self.degree not in (-1.0, self.inside + self.outside)
        refuse([(other, f"planted: degree={self.degree}", f"inside + outside, {self.inside + self.outside}")])
        object.__setattr__(self, "degree", self.inside + self.outside)
        super().__post_init__()

    def _rules(self) -> Iterator[Broken]:
        yield from super()._rules()
        counts = (1, self.classes, self.blocks, self.vertices)
        legal = counts == tuple(sorted(counts)) and self.features >= 1
        what = f"classes={self.classes}, blocks={self.blocks}, features={self.features}"
        yield not legal, what, "1 <= classes <= blocks <= vertices, 1 <= features"
        legal = min(self.inside, self.outside) >= 0 and not (self.blocks == 1 and self.outside)
        yield not legal, f"inside={self.inside}, outside={self.outside}", "not negative, and outside=0 for one block"

    @property
    def pairs(self) -> int:
        return sum(self._counts())

    def _counts(self) -> tuple[int, int]:
        return round(self.vertices * self.inside / 2), round(self.vertices * self.outside / 2)

    def _starts(self) -> Ints:
        """First vertex of each block, and the end: [blocks + 1]."""
        return np.arange(self.blocks + 1) * self.vertices // self.blocks

    def _edges(self, seed: int) -> tuple[Ints, Ints]:
        stream, n, starts = Draws(seed, "edges"), self.vertices, self._starts()
        block = np.repeat(np.arange(self.blocks), np.diff(starts))

        def near(count: int) -> tuple[Ints, Ints]:
            u = stream.below(n, count)
            own_block = block[u]
            return u, starts[own_block] + (stream.uniform(count) * np.diff(starts)[own_block]).astype(np.int64)

        def far(count: int) -> tuple[Ints, Ints]:
            u, v = stream.below(n, count), stream.below(n, count)
            apart = block[u] != block[v]
            return u[apart], v[apart]

        inside, outside = self._counts()
        ends = [distinct(self.name, draw, number, n, stream) for draw, number in ((near, inside), (far, outside))]
        return self._renamed(np.concatenate([u for u, _ in ends]), np.concatenate([v for _, v in ends]), seed)

    def load(self, seed: int) -> Graph:
        """The graph of `seed`. Features and labels belong to it and are not marked as random."""
        n = self.vertices
        rank = Draws(seed, "names").order(n)
        labels = np.empty(n, np.int64)
        labels[rank] = np.repeat(np.arange(self.blocks) % self.classes, np.diff(self._starts()))
        stream = Draws(seed, "features")
        means: Floats = stream.normal(self.classes * self.features).reshape(self.classes, self.features)
        means *= self.signal / np.linalg.norm(means, axis=1, keepdims=True)
        features = stream.normal(n * self.features).reshape(n, self.features)
        features += means[labels]
        parts = shares(n, self.train, self.validation, seed)
        table = features.astype(np.float32)
        return self._graph(*self._edges(seed), features=table, labels=labels, classes=self.classes, **parts)
