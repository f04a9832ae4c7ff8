"""Overheads of weight policies, counted by hand for four stages."""

from __future__ import annotations

import pytest

from baselines.gpipe import GPipe
from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest
from suite.core.protocols import WeightPolicy
from suite.schedule import OneFOneB
from suite.simulate.policy_overheads import counting_interval, policy_overheads
from suite.weights import Latest, Predict

STAGES = 4


def counted(policy: WeightPolicy, every: int) -> list[tuple[float, float, float, int]]:
    overheads = policy_overheads(policy, OneFOneB(), STAGES, counting_interval(1, every, STAGES))
    return [(one.forward, one.backward, one.copies, one.extra_versions) for one in overheads]


@pytest.mark.parametrize(
    ("policy", "every", "expected"),
    [
        # a version per microbatch in flight; on the last stage a step is in place
        (Stash(), 1, [(0, 0, 1, 3), (0, 0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 0)]),
        (Stash(graph="keep"), 1, [(0, 0, 1, 3), (0, 0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 0)]),
        (DoubleBuffer(), 4, [(0, 0, 1, 1)] * 4),
        # all stages aim at one version: from the third on the backward pass predicts too
        (SpecTrain(), 1, [(1, 0, 0, 1), (1, 0, 0, 1), (1, 1, 0, 1), (1, 1, 0, 1)]),
        (Predict(), 1, [(1, 0, 0, 1), (1, 0, 0, 1), (1, 0, 0, 1), (0, 0, 0, 0)]),
        (Predict(s="authors"), 1, [(1, 0, 0, 1)] * 4),
        # a graph that is kept holds the weights that it was made with
        (Predict(graph="keep"), 1, [(1, 0, 0, 4), (1, 0, 0, 3), (1, 0, 0, 2), (0, 0, 0, 0)]),
    ],
)
def test_what_a_full_pipeline_asks_for(
    policy: WeightPolicy, every: int, expected: list[tuple[float, float, float, int]]
) -> None:
    assert counted(policy, every) == expected


@pytest.mark.parametrize("graph", ["keep", "recompute", "swap"])
def test_a_flush_asks_for_nothing_but_recomputation(graph: str) -> None:
    for one in policy_overheads(Latest(graph), GPipe(), STAGES, counting_interval(4, None, STAGES)):
        assert (one.forward, one.backward, one.copies, one.extra_versions) == (0, 0, 0, 0)
        assert one.recomputes is (graph == "recompute")


def test_a_policy_refuses_a_pipeline_that_it_cannot_serve() -> None:
    with pytest.raises(InvalidRequest, match="update_interval=2"):
        policy_overheads(DoubleBuffer(), OneFOneB(), STAGES, counting_interval(1, 2, STAGES))
    with pytest.raises(InvalidRequest, match="with a flush"):
        policy_overheads(Predict(), OneFOneB(), STAGES, counting_interval(4, None, STAGES))
