"""Generated graphs: counts, structure and reproducibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from suite.config.plugins import build
from suite.core.errors import InvalidRequest
from suite.data.graphs import Graph, operator
from suite.data.graphs.communities import Communities
from suite.data.graphs.generate import RMAT, AmazonLike, PapersLike, Planted, ProteinLike, RedditLike
from suite.data.graphs.stable_rng import Draws, blocks
from suite.data.graphs.synthetic_attributes import SyntheticGraph
from tests.support.refusals import fault, refused

CONF = Path(__file__).resolve().parents[4] / "conf" / "graph"
SMALL: dict[str, SyntheticGraph] = {
    "rmat": RMAT(vertices=1024, degree=12, features=5, classes=3),
    "amazon_like": AmazonLike(vertices=1500, features=5, classes=3),
    "protein_like": ProteinLike(vertices=1500, degree=14, features=5, classes=3),
    "reddit_like": RedditLike(vertices=1500, degree=60, features=5, classes=3),
    "papers_like": PapersLike(vertices=1500, features=5, classes=3),
    "planted": Planted(vertices=1500, blocks=20),
}


def across(graph: Graph, parts: np.ndarray[Any, Any]) -> float:
    """Share of the entries between two parts."""
    matrix = graph.adjacency.tocoo()
    return float((parts[matrix.row] != parts[matrix.col]).mean())


@pytest.mark.parametrize("name", SMALL)
def test_every_source_keeps_what_all_promise(name: str) -> None:
    source = SMALL[name]
    graph = source.load(3)
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


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_is_a_graph_and_another_seed_another(name: str) -> None:
    source = SMALL[name]
    one, two = source.load(3), source.load(3)
    assert one.hash == two.hash != source.load(4).hash
    for part in ("features", "labels", "train"):
        assert np.array_equal(getattr(one, part), getattr(two, part))
        assert not np.array_equal(getattr(one, part), getattr(source.load(4), part))


def test_a_seed_is_its_graph_for_ever() -> None:
    """Of the sources that use nothing but sums and products; a power may round otherwise on another processor."""
    assert {name: SMALL[name].load(0).hash[:8] for name in ("rmat", "planted")} == {
        "rmat": "49b3900c",
        "planted": "88d09d40",
    }


def test_vertices_are_numbered_at_random() -> None:
    for name, source in SMALL.items():
        matrix = source.load(0).adjacency.tocoo()
        distance = np.abs(matrix.row - matrix.col).mean() / source.vertices
        assert distance == pytest.approx(1 / 3, abs=0.04), f"{name}: the mean between two numbers drawn at random"


def test_what_is_drawn_is_said_and_can_be_left_out() -> None:
    graph = SMALL["rmat"].load(0)
    assert graph.random == ("features", "labels")
    assert graph.features is not None
    assert graph.features.shape == (1024, 5)
    assert float(graph.features.mean()) == pytest.approx(0, abs=0.05)
    assert float(graph.features.var()) == pytest.approx(1, abs=0.05)
    assert graph.labels is not None
    assert np.bincount(graph.labels).min() > 1024 / 3 * 0.8
    bare = RMAT(vertices=1024, degree=12, features=0, classes=0).load(0)
    assert (bare.features, bare.labels, bare.classes, bare.random) == (None, None, 0, ())
    assert bare.hash == graph.hash, "features do not move edges"
    assert SMALL["planted"].load(0).random == ()
    wide = AmazonLike(vertices=64, degree=4).load(0)
    assert wide.features is not None
    assert (wide.features.shape[1], wide.classes) == (300, 24)


def test_provenance_is_of_the_arguments() -> None:
    said = RMAT(vertices=64, degree=4).provenance()
    assert said | {"sha256": ""} == {"name": "rmat", "vertices": 64, "edges": 256, "sha256": ""}
    assert said != RMAT(vertices=64, degree=4, b=0.18).provenance()


def test_a_recursive_matrix_has_skewed_degrees_and_lonely_vertices() -> None:
    degrees = np.diff(RMAT(vertices=8192, degree=15, features=0, classes=0).load(1).adjacency.indptr)
    assert degrees.max() > 40 * degrees.mean()
    assert 0.2 < (degrees == 0).mean() < 0.5
    even = RMAT(vertices=4096, degree=15, a=0.25, b=0.25, c=0.25, features=0, classes=0).load(1)
    assert np.diff(even.adjacency.indptr).max() < 45, "equal chances make an even graph"


def test_neighbours_tell_a_planted_label_and_features_alone_do_not() -> None:
    graph = Planted(vertices=4096).load(0)
    assert graph.features is not None
    assert graph.labels is not None

    def right(features: np.ndarray[Any, Any]) -> float:
        """Accuracy on test vertices of the nearest mean: linear, and the best there is for noise of equal variance."""
        means = [features[graph.train & (graph.labels == label)].mean(axis=0) for label in range(graph.classes)]
        far = ((features[graph.test][:, None] - np.stack(means)) ** 2).sum(axis=2)
        return float((far.argmin(axis=1) == graph.labels[graph.test]).mean())  # type: ignore[index]

    matrix = operator(graph)
    alone, once, twice = (
        right(x) for x in (graph.features, matrix @ graph.features, matrix @ (matrix @ graph.features))
    )
    assert alone < 0.5
    assert once > 0.85
    assert twice > 0.95


def test_planted_blocks_are_equal_and_keep_their_edges() -> None:
    graph = Planted(vertices=1003, blocks=10, classes=10).load(2)  # a label per block
    assert graph.labels is not None
    sizes = np.bincount(graph.labels)
    assert sizes.max() - sizes.min() <= 1
    assert across(graph, graph.labels) == pytest.approx(2 / 16, abs=0.001)
    assert across(Planted(vertices=512, blocks=1, classes=1, outside=0).load(0), np.zeros(512)) == 0
    apart = Planted(vertices=512, blocks=512, classes=8, inside=0, outside=6).load(0)
    assert apart.edges == 512 * 6, "blocks of one vertex have no edge inside"


def test_communities_keep_all_but_the_far_edges() -> None:
    source = Communities(vertices=4000, degree=12, far=0.1, mixing=(0.5,), regions=(4,), features=0, classes=0)
    graph = source.load(0)
    starts = blocks(Draws(0, "shape"), 4000, smallest=18, largest=48, exponent=2.0)
    community = np.empty(4000, np.int64)
    community[Draws(0, "names").order(4000)] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    assert across(graph, community) == pytest.approx(0.1, abs=1e-3)
    assert np.diff(starts)[:-1].max() <= 48
    assert np.diff(starts)[:-1].min() >= 18
    degrees = np.diff(graph.adjacency.indptr)
    assert degrees.max() > 4 * degrees.mean()


def far_edges(**changed: Any) -> tuple[Graph, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A graph of communities, the community of each vertex, and the places on the ring of both ends of far edges."""
    arguments = {"vertices": 6000, "degree": 12, "far": 0.2, "features": 0, "classes": 0, **changed}
    graph = Communities(**arguments).load(0)
    starts = blocks(Draws(0, "shape"), 6000, smallest=18, largest=48, exponent=2.0)
    place = np.argsort(Draws(0, "names").order(6000))
    community = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    matrix = graph.adjacency.tocoo()
    here, there = place[matrix.row], place[matrix.col]
    far = community[here] != community[there]
    return graph, matrix.row[far], here[far], there[far]


def test_far_edges_prefer_hubs_as_much_as_they_are_told() -> None:
    def mean(hub: float) -> float:
        graph, ends, *_ = far_edges(hub=hub)
        inside = np.diff(graph.adjacency.indptr) - np.bincount(ends, minlength=6000)
        return float(inside[ends].mean() / inside.mean())

    assert mean(0.0) == pytest.approx(1, abs=0.05), "no preference for vertices of many edges"
    assert mean(1.0) > 1.2


def test_far_edges_go_as_far_as_they_are_told() -> None:
    def median(reach: float) -> float:
        _, _, here, there = far_edges(reach=reach, nearest=1 / 256)
        apart = np.abs(here - there)
        return float(np.median(np.minimum(apart, 6000 - apart)) / 6000)

    near, far = 2.0, 0.1  # median of the law: nearest / (1 - (1 - least) / 2)^(1 / reach), least = 128^-reach
    assert median(near) == pytest.approx(2**0.5 / 256, rel=0.25)
    assert median(far) == pytest.approx((1 - (1 - 128**-0.1) / 2) ** -10 / 256, rel=0.25)


def test_regions_mix_as_unequally_as_they_are_told() -> None:
    def busiest(mixing: float) -> float:
        _, _, here, _ = far_edges(mixing=(mixing,), regions=(4,), nearest=1 / 16)
        counts = np.bincount(here * 4 // 6000)
        return float(counts.max() / counts.mean())

    assert busiest(0.0) < 1.15
    assert busiest(1.0) == pytest.approx(4 * 0.57, rel=0.15)  # normal quantiles at 1/8, 3/8, ...: e^1.15 of 5.58


def test_proteins_fall_into_blocks() -> None:
    source = ProteinLike(vertices=3000, degree=10, bridges=1, features=0, classes=0)
    starts = blocks(Draws(0, "shape"), 3000, smallest=25, largest=200, exponent=1.0)
    block = np.empty(3000, np.int64)
    block[Draws(0, "names").order(3000)] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    count = len(starts) - 1
    assert across(source.load(0), block) * source.pairs == pytest.approx(count), "a bridge per block"
    one = ProteinLike(vertices=20, degree=4, smallest=10, features=0, classes=0).load(0)
    assert one.edges == 80, "a single block, without a bridge"


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("vertices", [1, 2])
def test_the_smallest_graphs_come_out(name: str, vertices: int) -> None:
    extra = {"blocks": 1, "classes": 1, "outside": 0, "inside": 0} if name == "planted" else {"degree": 0}
    graph = type(SMALL[name])(vertices=vertices, **extra).load(0)
    assert (graph.vertices, graph.edges) == (vertices, 0)
    assert graph.train.any()


@pytest.mark.parametrize(
    ("source", "arguments", "expected"),
    [
        (
            RMAT,
            {"vertices": 1000, "degree": 4},
            fault(subject="1000 vertices", rule="a power of two", legal="vertices=512"),
        ),
        (RMAT, {"vertices": 0, "degree": 4}, fault("vertices", "0")),
        (RMAT, {"vertices": 16, "degree": 16}, fault("degree", "16")),
        (RMAT, {"vertices": 16, "degree": -1}, fault("degree", "-1")),
        (RMAT, {"vertices": 16, "degree": 4, "a": 0.9}, fault("a", "0.9", subject="b=0.19, c=0.19, rest -0.28")),
        (RMAT, {"vertices": 16, "degree": 4, "features": -1}, fault("features", "-1")),
        (RMAT, {"vertices": 16, "degree": 4, "train": 0.9}, fault("train", "0.9", subject="validation=0.2")),
        (RMAT, {"vertices": 16, "degree": float("nan")}, fault("degree", "nan")),
        (Planted, {"vertices": 64, "degree": 3}, fault("degree", "3")),
        (Planted, {"vertices": 32}, fault("classes", "8", subject="blocks=64, vertices=32")),
        (Planted, {"vertices": 64, "blocks": 1, "classes": 1}, fault("inside", "14.0", subject="outside=2.0")),
        (AmazonLike, {"vertices": 64, "mixing": (1.0,)}, fault("mixing", "(1.0,)")),
        (AmazonLike, {"vertices": 64, "far": 1.0}, fault("far", "1.0")),
        (AmazonLike, {"vertices": 64, "tail": 1.0}, fault("tail", "1.0")),
        (ProteinLike, {"vertices": 64, "degree": 4, "bridges": -1}, fault("smallest", "2.5", subject="bridges=-1")),
    ],
)
def test_arguments_that_make_no_graph_are_refused(
    source: Any, arguments: dict[str, Any], expected: dict[str, object]
) -> None:
    with refused(InvalidRequest, **expected):
        source(**arguments).load(0)


def test_edges_that_do_not_fit_are_counted() -> None:
    with refused(InvalidRequest, subject="different edges of 2048 after 64 rounds", rule="an edge comes once"):
        RMAT(vertices=512, degree=8, a=1.0, b=0.0, c=0.0, features=0, classes=0).load(0)
    with refused(InvalidRequest, subject="lack", rule="room for degree=20"):
        ProteinLike(vertices=400, degree=20, smallest=1, largest=1, features=0, classes=0).load(0)
    with refused(InvalidRequest, "seed", "-1"):
        SMALL["rmat"].load(-1)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_graph_of_the_configs_is_built(path: Path) -> None:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["name"] == path.stem
    source = build({key: value if value != "???" else "FOLDER" for key, value in config["source"].items()})
    if isinstance(source, SyntheticGraph):
        assert source.name == path.stem
        assert source.provenance()["vertices"] <= 1 << 15, "what two cores hold"
