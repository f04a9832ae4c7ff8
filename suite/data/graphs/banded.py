"""Generator of regular graphs: blocks with edges to near neighbours, and few edges between blocks.

Such a graph falls apart for any partitioner while a random order still asks every process for most rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suite.core.errors import InvalidRequest
from suite.data.graphs.stable_rng import Draws, Ints, blocks, distinct
from suite.data.graphs.synthetic_attributes import SyntheticGraph


@dataclass(frozen=True, kw_only=True)
class ProteinLike(SyntheticGraph):
    """Stands for the paper's Protein: proteins, joined where they are alike.

    degree: 242 in the published graph (sparse_gnn, Table 3), which is large for a laptop: there is no default

    Inside a block the pairs of the smallest distance in its order are edges, in all blocks alike: a band. Known: counts
    and how few edges are cut. Guessed: the sizes, between 2.5 and 20 degrees, and the band. Parts should hold several
    blocks: more than about vertices / (20 * degree) of them cut bands.

    Attributes:
        smallest, largest: Vertices of a block (a family), in degrees; logarithms of sizes are even between them.
        bridges: Edges between blocks, per block. With two, a partition of the published counts into 256 parts would
            have at most some thousands to cut, which is what the paper's partitions cut (section 7.1.2).
    """

    smallest: float = 2.5
    largest: float = 20.0
    bridges: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.smallest <= self.largest or self.bridges < 0:
            what = f"protein_like: smallest={self.smallest}, largest={self.largest}, bridges={self.bridges}"
            raise InvalidRequest(what, rule="1 <= smallest <= largest, 0 <= bridges", legal="2.5, 20, 2")

    def _edges(self, seed: int) -> tuple[Ints, Ints]:
        n, stream = self.vertices, Draws(seed, "edges")
        low, high = max(2.0, self.smallest * self.degree), max(2.0, self.largest * self.degree)
        starts = blocks(Draws(seed, "shape"), n, smallest=low, largest=high, exponent=1.0)
        sources = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

        def far(count: int) -> tuple[Ints, Ints]:
            u, v = stream.below(n, count), stream.below(n, count)
            apart = sources[u] != sources[v]
            return u[apart], v[apart]

        bridges = min(round(self.bridges * (len(starts) - 1)), self.pairs) if len(starts) > 2 else 0
        ends = [distinct(self.name, far, bridges, n, stream)]
        missing, places, distance = self.pairs - bridges, np.arange(n), 0
        while missing:
            distance += 1
            first = places[: n - distance]
            first = first[sources[: n - distance] == sources[distance:]]
            if not len(first):
                what = f"{self.name}: blocks of at most {np.diff(starts).max()} vertices lack {missing} edges"
                raise InvalidRequest(what, rule=f"room for degree={self.degree}", legal="a larger `smallest`")
            if len(first) > missing:  # of the last distance, some by chance
                first = first[stream.order(len(first))[:missing]]
            ends.append((first, first + distance))
            missing -= len(first)
        return self._renamed(np.concatenate([u for u, _ in ends]), np.concatenate([v for _, v in ends]), seed)
