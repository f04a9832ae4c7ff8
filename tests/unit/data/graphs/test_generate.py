"""Generated graphs: counts, structure and reproducibility."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.core.errors import InvalidRequest
from suite.data.graphs.generate import RMAT, AmazonLike, PapersLike, Planted, ProteinLike, RedditLike
from suite.data.graphs.synthetic import SyntheticGraph
from tests.support.refusals import fault, refused

SMALL: dict[str, SyntheticGraph] = {
    "rmat": RMAT(vertices=1024, degree=12, features=5, classes=3),
    "amazon_like": AmazonLike(vertices=1500, features=5, classes=3),
    "protein_like": ProteinLike(vertices=1500, degree=14, features=5, classes=3),
    "reddit_like": RedditLike(vertices=1500, degree=60, features=5, classes=3),
    "papers_like": PapersLike(vertices=1500, features=5, classes=3),
    "planted": Planted(vertices=1500, blocks=20),
}


def test_every_source_keeps_the_common_promises() -> None:
    for name, source in SMALL.items():
        graph, again, other = source.load(3), source.load(3), source.load(4)
        assert graph.name == source.name == name
        assert graph.edges == 2 * source.pairs == source.provenance()["edges"]
        assert graph.edges == pytest.approx(source.vertices * source.degree, abs=4)
        assert graph.symmetric
        assert (graph.adjacency.data == 1).all()
        assert graph.adjacency.diagonal().sum() == 0
        assert graph.notes == ()
        together = np.stack((graph.train, graph.validation, graph.test)).sum(axis=0)
        assert (together == 1).all(), "a vertex is in one part"
        assert graph.train.sum() == round(0.6 * graph.vertices)
        assert graph.validation.sum() == round(0.2 * graph.vertices)
        matrix = graph.adjacency.tocoo()
        distance = np.abs(matrix.row - matrix.col).mean() / source.vertices
        assert distance == pytest.approx(1 / 3, abs=0.04), f"{name}: the mean between two numbers drawn at random"
        assert graph.hash == again.hash != other.hash
        for part in ("features", "labels", "train"):
            assert np.array_equal(getattr(graph, part), getattr(again, part))
            assert not np.array_equal(getattr(graph, part), getattr(other, part))


def test_a_seed_is_its_graph_for_ever() -> None:
    """Of the sources that use nothing but sums and products; a power may round otherwise on another processor."""
    assert SMALL["rmat"].load(0).hash[:8] == "49b3900c"
    assert SMALL["planted"].load(0).hash[:8] == "88d09d40"


def test_random_features_are_marked_and_can_be_left_out() -> None:
    graph: Any = SMALL["rmat"].load(0)
    assert graph.random == ("features", "labels")
    assert graph.features.shape == (1024, 5)
    assert float(graph.features.mean()) == pytest.approx(0, abs=0.05)
    assert float(graph.features.var()) == pytest.approx(1, abs=0.05)
    assert np.bincount(graph.labels).min() > 1024 / 3 * 0.8
    bare = RMAT(vertices=1024, degree=12, features=0, classes=0).load(0)
    assert (bare.features, bare.labels, bare.classes, bare.random) == (None, None, 0, ())
    assert bare.hash == graph.hash, "features do not move edges"
    assert SMALL["planted"].load(0).random == ()


def test_the_smallest_graphs_come_out() -> None:
    for name, source in SMALL.items():
        extra = {"blocks": 1, "classes": 1, "outside": 0, "inside": 0} if name == "planted" else {"degree": 0}
        for vertices in (1, 2):
            graph = type(source)(vertices=vertices, **extra).load(0)
            assert (graph.vertices, graph.edges) == (vertices, 0)
            assert graph.train.any()


REFUSED: tuple[tuple[Any, dict[str, Any], dict[str, object]], ...] = (
    (RMAT, {"vertices": 1000, "degree": 4}, fault(subject="1000 vertices", rule="such as 512")),
    (RMAT, {"vertices": 16, "degree": 16}, fault(subject="128 different edges", rule="degree at most 15")),
    (RMAT, {"vertices": 16, "degree": 4, "a": 0.9}, fault("a", "0.9", subject="rest -0.28")),
    (RMAT, {"vertices": 16, "degree": 4, "train": 0.9}, fault("train", "0.9", subject="validation=0.2")),
    (Planted, {"vertices": 64, "degree": 3}, fault("degree", "3")),
    (Planted, {"vertices": 64, "blocks": 1, "classes": 1}, fault(subject="0 different edges of 64 after 64 rounds")),
    (AmazonLike, {"vertices": 64, "mixing": (1.0,)}, fault("mixing", "(1.0,)")),
    (AmazonLike, {"vertices": 64, "tail": 1.0}, fault("tail", "1.0")),
    (ProteinLike, {"vertices": 400, "degree": 20, "smallest": 1, "largest": 1}, fault(rule="room for degree=20")),
)


def test_arguments_that_make_no_graph_are_refused() -> None:
    for source, arguments, expected in REFUSED:
        with refused(InvalidRequest, **expected):
            source(**arguments).load(0)
