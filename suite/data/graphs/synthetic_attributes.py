"""Attributes of generated graphs: counts, splits, random features and labels.

Every generated graph is symmetric, without self loops, of weight 1. Vertices are numbered at random, so a system that
divides rows into blocks meets a random order. The number of edges is exact: duplicates are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suite.config.base import Amount, Count, Size
from suite.core.errors import refuse
from suite.data.graphs.graph import RANDOM, Graph
from suite.data.graphs.stable_rng import Draws, Ints

# widths of Amazon and Protein, whose features and labels are arbitrary in the paper too (sparse_gnn, Table 3)
FEATURES, CLASSES = 300, 24
TRAIN, VALIDATION = 0.6, 0.2  # shares of the vertices; nothing published depends on them


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
