"""Partitioners of the extra `gnn`, where they are installed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from suite.core.errors import InvalidRequest, MissingDependency
from suite.core.protocols import Missing
from suite.data.graphs.communities import AmazonLike
from suite.gnn.partition import kahip, mtkahypar, partition
from suite.gnn.partition.kahip import Kahip
from suite.gnn.partition.mtkahypar import MtKahypar, nets
from suite.gnn.partition.pattern import directed_pattern
from suite.gnn.partition.simple import Random
from suite.gnn.plan import count_volumes

GRAPH = AmazonLike(vertices=512, features=0, classes=0).load(0).adjacency
DIRECTED = csr_array(random_array((200, 200), density=0.02, rng=np.random.default_rng(0), format="csr"))


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not find_spec(package), reason=f"{package} is not installed (extra gnn)")


@needs("mtkahypar")
@pytest.mark.parametrize("matrix", [GRAPH, DIRECTED], ids=["symmetric", "directed"])
def test_km1_equals_total_volume(matrix: csr_array) -> None:
    """Model of Catalyurek and Aykanat."""
    weight = np.ones(matrix.shape[0], np.int64)
    parts, km1 = MtKahypar().km1(nets(csr_array(directed_pattern(matrix).T)), weight, 5, 0)
    assert km1 == count_volumes(matrix, parts, 5).total
    assert (MtKahypar().parts(matrix, 8, 0) == MtKahypar().parts(matrix, 8, 1)).all()


@needs("kahip")
def test_kahip_is_deterministic_and_sends_less_than_random_parts() -> None:
    parts = Kahip().parts(GRAPH, 8, 0)
    assert (parts == Kahip().parts(GRAPH, 8, 0)).all()
    assert count_volumes(GRAPH, parts, 8).total < 0.5 * count_volumes(GRAPH, Random().parts(GRAPH, 8, 0), 8).total


def test_missing_package_or_illegal_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, partitioner in ((kahip, Kahip()), (mtkahypar, MtKahypar())):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
        assert isinstance(partitioner.probe(), Missing)
        with pytest.raises(MissingDependency):
            partition(partitioner, GRAPH, 2, seed=0, folder=None)
    for kind, settings in (
        (Kahip, {"imbalance": -1}),
        (MtKahypar, {"imbalance": -1}),
        (Kahip, {"mode": "slow"}),
        (MtKahypar, {"preset": "default"}),
    ):
        with pytest.raises(InvalidRequest):
            kind(**settings)  # type: ignore[operator]
