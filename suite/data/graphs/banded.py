"""Generator of regular graphs: blocks with edges to near neighbours, and few edges between blocks.

Every partitioner finds the blocks of such a graph, while a random order makes every process need most rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from suite.config.base import Positive, Size
from suite.core.errors import refuse
from suite.data.graphs.stable_rng import Draws, Ints, between, blocks, distinct
from suite.data.graphs.synthetic_attributes import SyntheticGraph


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
