"""Partitioners of the extra `gnn`, where they are installed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.protocols import Missing
from suite.data.graphs.communities import AmazonLike
from suite.gnn.partition import kahip, mtkahypar, partition
from suite.gnn.partition.gvb import Gvb
from suite.gnn.partition.kahip import Kahip
from suite.gnn.partition.metis import Metis
from suite.gnn.partition.mtkahypar import MtKahypar, nets
from suite.gnn.partition.pattern import directed
from suite.gnn.partition.simple import Random
from suite.gnn.plan import volumes

GRAPH = AmazonLike(vertices=1024, features=0, classes=0).load(0).adjacency


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not find_spec(package), reason=f"{package} is not installed (extra gnn)")


@needs("mtkahypar")
@pytest.mark.parametrize("symmetric", [True, False])
def test_km1_is_the_total_volume(symmetric: bool) -> None:
    """Catalyurek and Aykanat's model: what Mt-KaHyPar counts by nets is what a plan counts by blocks."""
    one = csr_array(random_array((200, 200), density=0.02, rng=np.random.default_rng(0), format="csr"))
    matrix = GRAPH if symmetric else one
    weight = np.ones(matrix.shape[0], np.int64)
    parts, cost = MtKahypar().km1(nets(csr_array(directed(matrix).T)), weight, 5, 0)
    assert cost == volumes(matrix, parts, 5).total


@needs("mtkahypar")
def test_mtkahypar_moves_fewer_rows_than_metis_and_the_same_each_time() -> None:
    parts = MtKahypar().parts(GRAPH, 8, 0)
    assert (parts == MtKahypar().parts(GRAPH, 8, 1)).all()
    assert volumes(GRAPH, parts, 8).total < volumes(GRAPH, Metis().parts(GRAPH, 8, 0), 8).total


@needs("kahip")
def test_kahip_cuts_little_and_starts_gvb() -> None:
    parts = Kahip().parts(GRAPH, 8, 0)
    assert (parts == Kahip().parts(GRAPH, 8, 0)).all()
    assert volumes(GRAPH, parts, 8).total < 0.5 * volumes(GRAPH, Random().parts(GRAPH, 8, 0), 8).total
    more, fewer = (volumes(GRAPH, Gvb(starts=1, kahip=number).parts(GRAPH, 8, 0), 8) for number in (1, 0))
    assert more.send.max() <= 1.1 * fewer.send.max()


def test_without_its_package_each_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, made in ((kahip, Kahip()), (mtkahypar, MtKahypar())):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
        assert isinstance(made.probe(), Missing)
        with pytest.raises(MissingDependency, match=r"pip install '\.\[gnn\]'"):
            partition(made, GRAPH, 2, seed=0, folder=None)


def test_settings_are_checked() -> None:
    for wrong in (lambda: Kahip(imbalance=-1), lambda: MtKahypar(imbalance=-1)):
        with pytest.raises(InvalidRequest):
            wrong()
    for unknown in (lambda: Kahip(mode="slow"), lambda: MtKahypar(preset="default")):
        with pytest.raises(UnknownName):
            unknown()
