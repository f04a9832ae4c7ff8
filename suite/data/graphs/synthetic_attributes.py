"""Attributes of generated graphs: counts, splits, random features and labels.

Every generated graph is symmetric, without self loops, of weight 1. Vertices are numbered at random, so a system that
divides rows into blocks meets a random order. The number of edges is exact: duplicates are drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suite.core.errors import Broken, refuse
from suite.data.graphs.graph import Graph
from suite.data.graphs.stable_rng import Draws, Ints

# widths of Amazon and Protein, whose features and labels are arbitrary in the paper too (sparse_gnn, Table 3)
FEATURES, CLASSES = 300, 24
TRAIN, VALIDATION = 0.6, 0.2  # shares of the vertices; nothing published depends on them


@dataclass(frozen=True, kw_only=True)
class SyntheticGraph:
    """Common settings of all generators.

    Attributes:
        vertices: Number of vertices.
        degree: Entries of the adjacency per vertex, both directions counted.
        features, classes: Width and number of the random features and labels; 0 for none.
        train, validation: Shares of the vertices; the rest is test.
    """

    vertices: int
    degree: float
    features: int = FEATURES
    classes: int = CLASSES
    train: float = TRAIN
    validation: float = VALIDATION

    def __post_init__(self) -> None:
        refuse((broken, f"{self.name}: {what}", *rest) for broken, what, *rest in self._rules())

    def _rules(self) -> Iterator[Broken]:
        """Rules of the settings; a generator adds its own."""
        yield self.vertices < 1, f"vertices={self.vertices}", "at least 1"
        legal = 0 <= self.degree < self.vertices + (self.vertices == 1)
        yield not legal, f"degree={self.degree} with vertices={self.vertices}", "0 <= degree < vertices"
        what = f"features={self.features}, classes={self.classes}"
        yield min(self.features, self.classes) < 0, what, "not negative; 0 for none"

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
        u, v = self._edges(seed)
        counts = {"features": self.features, "classes": self.classes}
        attributes = draw_attributes(self.vertices, **counts, train=self.train, validation=self.validation, seed=seed)
        return self._graph(u, v, **attributes)

    def _graph(self, u: Ints, v: Ints, **rest: Any) -> Graph:
        both = np.concatenate((u, v)), np.concatenate((v, u))
        return Graph.of(self.name, *both, self.vertices, **rest)

    def _edges(self, seed: int) -> tuple[Ints, Ints]:
        raise NotImplementedError

    def _renamed(self, u: Ints, v: Ints, seed: int) -> tuple[Ints, Ints]:
        rank = Draws(seed, "names").order(self.vertices)
        return rank[u], rank[v]


def draw_attributes(
    vertices: int, *, features: int, classes: int, train: float, validation: float, seed: int
) -> dict[str, Any]:
    """Splits, random features and random labels of a graph, as arguments of Graph.

    `random` lists the attributes that were drawn. `features=0` or `classes=0` leaves an attribute out.
    """
    attributes = shares(vertices, train, validation, seed)
    drawn = []
    if features:
        attributes["features"] = Draws(seed, "features").flat(vertices, features)
        drawn.append("features")
    if classes:
        attributes |= {"labels": Draws(seed, "labels").below(classes, vertices), "classes": classes}
        drawn.append("labels")
    return attributes | {"random": tuple(drawn)}


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
