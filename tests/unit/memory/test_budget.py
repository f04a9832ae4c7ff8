"""Peak memory of a rank: states that are alive together add up.

A flush has nothing in flight while its update runs; an asynchronous schedule has both at once.
"""

from __future__ import annotations

import pytest

from suite.memory import Budget, Layout, ModelStateSpec, dense

DRIFT = ModelStateSpec("drift", "scratch", "float32", 10, life="step")
LAYOUT = Layout((*dense(10, ("momentum",)), DRIFT))  # 40 + 40 + 40 bytes always, 40 more during the update


def test_a_flush_pays_for_activations() -> None:
    budget = Budget(LAYOUT, activations=100, in_flight=3, working=20)
    assert budget.by_kind() == {"weights": 40, "gradients": 40, "moments": 40, "activations": 320}
    assert budget.peak == 440


def test_or_for_the_update_where_that_is_more() -> None:
    budget = Budget(LAYOUT, activations=5, in_flight=3, working=20)
    assert budget.by_kind() == {"weights": 40, "gradients": 40, "moments": 40, "scratch": 40}
    assert budget.peak == 160


def test_without_a_drain_an_update_meets_what_is_still_open() -> None:
    """Two of three microbatches are open when the update after the third's backward pass runs."""
    passing = Budget(LAYOUT, activations=100, in_flight=3, working=20, extra_versions=80, drains=False)
    assert passing.by_kind() == {"weights": 120, "gradients": 40, "moments": 40, "activations": 320, "scratch": 0}
    assert passing.peak == 520
    stepping = Budget(LAYOUT, activations=15, in_flight=3, working=20, waiting=4, extra_versions=80, drains=False)
    assert stepping.by_kind() == {"weights": 120, "gradients": 40, "moments": 40, "activations": 34, "scratch": 40}
    assert stepping.peak == 274


def test_buckets_count_as_scratch_and_the_host_does_not_count() -> None:
    layout = Layout(
        (
            ModelStateSpec("half", "weights", "float16", 100),
            ModelStateSpec("master", "weights", "float32", 100, home="host"),
            ModelStateSpec("bucket", "scratch", "float32", 30, life="bucket"),
            ModelStateSpec("drift", "scratch", "float32", 5, life="step"),
        )
    )
    assert Budget(layout, activations=0, in_flight=1, working=0).by_kind() == {"weights": 200, "scratch": 140}


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("versions", [0, 12])
def test_kinds_sum_to_the_peak(drains: bool, versions: int) -> None:
    budget = Budget(LAYOUT, activations=7, in_flight=2, working=3, extra_versions=versions, drains=drains)
    assert sum(budget.by_kind().values()) == budget.peak == 120 + versions + (40 if drains else 47)
