"""Overheads of weight policies, counted by hand for four stages."""

from __future__ import annotations

import pytest

from baselines.gpipe import GPipe
from baselines.pipedream import DoubleBuffer, Stash
from baselines.spectrain import SpecTrain
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Schedule, WeightPolicy
from suite.schedule import OneFOneB
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.placement import places
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV
from suite.simulate.policy_overheads import PolicyOverheads, counting_interval, policy_overheads
from suite.weights import Latest, Predict
from tests.support.placed import SplitStream
from tests.support.refusals import refused

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


@pytest.mark.parametrize("schedule", [Staircase(2), Staircase(split=True), ZBV(), DualPipeV()])
def test_placed_schedule_that_drains_has_the_overheads_of_a_flush(schedule: Schedule) -> None:
    for graph in ("keep", "recompute"):
        found = policy_overheads(Latest(graph), schedule, STAGES, counting_interval(16, None, STAGES))
        assert len(found) == places(schedule, STAGES)[0].stages
        assert set(found) == {PolicyOverheads(0, 0, 0, 0, recomputes=graph == "recompute")}


@pytest.mark.parametrize("schedule", [Staircase(2), Staircase(split=True), ZBV()])
def test_asynchronous_policy_of_placed_schedule_is_refused_by_name(schedule: Schedule) -> None:
    with pytest.raises(Unsupported) as caught:
        policy_overheads(Stash(), schedule, STAGES, counting_interval(1, 1, STAGES))
    assert (caught.value.key, caught.value.value) == ("weights", "Stash")
    assert "one stage per rank and whole backward passes" in caught.value.rule
    assert "one_f_one_b" in caught.value.legal
    assert policy_overheads(Stash(), Staircase(), STAGES, counting_interval(1, 1, STAGES))


@pytest.mark.parametrize("schedule", [Staircase(2), Staircase(split=True), ZBV()])
def test_stream_without_a_drain_keeps_one_version(schedule: Schedule) -> None:
    found = policy_overheads(Latest(), schedule, STAGES, counting_interval(8, 8, STAGES))
    assert set(found) == {PolicyOverheads(0, 0, 0, 0, recomputes=False)}


def test_update_between_the_passes_of_a_microbatch_is_refused() -> None:
    with refused(Unsupported, "update_interval", 1) as caught:
        policy_overheads(Latest(), SplitStream(), STAGES, counting_interval(1, 1, STAGES))
    assert "no update comes between the passes of a microbatch; on rank 0, 3 do" in caught.value.rule


def test_a_policy_refuses_a_pipeline_that_it_cannot_serve() -> None:
    with refused(
        InvalidRequest, subject="update_interval=2", rule="an update sums at least as many microbatches as there"
    ):
        policy_overheads(DoubleBuffer(), OneFOneB(), STAGES, counting_interval(1, 2, STAGES))
    with refused(InvalidRequest, "update_interval", subject="with a flush"):
        policy_overheads(Predict(), OneFOneB(), STAGES, counting_interval(4, None, STAGES))
