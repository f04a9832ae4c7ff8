"""Memory budget of a pipeline stage, each term by hand, and the peak: states that are alive together add up.

A flush has nothing in flight while its update runs; an asynchronous schedule has both at once. A rank of 10 weights
with one moment: float32 takes 40 + 40 + 40 bytes. A microbatch keeps 100 bytes, needs 20 more while a pass runs, and
arrives as a message of 8. In mixed precision a step on the host's states needs buckets too.
"""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.op import FlushInterval, Place
from suite.memory.budget import Budget
from suite.memory.layout import Layout, ModelStateSpec, dense, offloaded, resident
from suite.memory.stage_budget import stage_budget
from suite.schedule import MessageDriven, OneFOneB
from suite.workload.stage_memory import MicrobatchMemory

DENSE = dense(10, ("velocity",))
STEPPING = Layout((*DENSE, ModelStateSpec("drift", "scratch", "float32", 10, life="step")))  # 40 more during an update
STATES = {"weights": 40, "gradients": 40, "moments": 40}
# settings of a budget, and the bytes at its peak in addition to the gradients and moments
PEAKS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"activations": 100, "in_flight": 3, "working": 20}, {"activations": 320}),
    ({"activations": 5, "in_flight": 3, "working": 20}, {"scratch": 40}),
    ({"activations": 10, "in_flight": 2, "working": 20}, {"activations": 40}),  # no less than the scratch
    ({"activations": 5, "in_flight": 3, "working": 20, "held": 90}, {"activations": 110}),
    # without a drain, two of three microbatches are open when the update after the third's backward pass runs
    (
        {"activations": 100, "in_flight": 3, "working": 20, "extra_versions": 80, "drains": False},
        {"weights": 120, "activations": 320, "scratch": 0},
    ),
    (
        {"activations": 15, "in_flight": 3, "working": 20, "waiting": 4, "extra_versions": 80, "drains": False},
        {"weights": 120, "activations": 34, "scratch": 40},
    ),
    ({"activations": 7, "in_flight": 2, "working": 3, "drains": False}, {"activations": 7, "scratch": 40}),
]


def test_peak_is_in_a_pass_or_in_the_update() -> None:
    for settings, expected in PEAKS:
        budget = Budget(STEPPING, **{"held": settings["activations"] * settings["in_flight"], **settings})
        assert budget.by_kind() == {**STATES, **expected}, settings
        assert budget.peak == sum({**STATES, **expected}.values())


# -- stages ----------------------------------------------------------------------------------------------------------

FLUSH, STREAM = FlushInterval(0, 8, None, 0), FlushInterval(0, 24, 1, 0)
OFFLOADED = offloaded(10, ("moment_1", "moment_2"), bucket=10)


def budget(stage: int = 0, **changes: Any) -> Budget:
    """Of 1F1B on four stages, where stage s has 4 - s microbatches in flight."""
    usual: dict[str, Any] = {
        "layout": DENSE,
        "microbatch_memory": MicrobatchMemory(saved=100, transient=20, input=8),
        "schedule": OneFOneB(),
        "interval": FLUSH,
        **{"extra_versions": 0, "reducing": 0, "overlaps_step": False, "scratch_stays": False},
    }
    return stage_budget(place=Place(stage, 4), **{**usual, **changes})


def test_first_stage_keeps_microbatches_in_flight_and_waits_for_none() -> None:
    assert budget() == Budget(DENSE, activations=100, in_flight=4, held=400, working=20)
    assert budget().peak == 3 * 40 + 4 * 100 + 20


def test_message_waits_for_each_microbatch_open_on_the_stage_before() -> None:
    """1F1B has one more open on the stage before; a message-driven last stage has one of four."""
    assert [budget(stage).waiting for stage in range(4)] == [0, 8, 8, 8]
    assert [budget(stage, schedule=MessageDriven()).waiting for stage in range(4)] == [0, 0, 0, 3 * 8]
    assert budget(3).peak == 3 * 40 + 1 * 100 + 20 + 8
    two = [budget(stage, interval=FlushInterval(0, 2, None, 0)) for stage in range(4)]
    assert [(stage.in_flight, stage.waiting) for stage in two] == [(2, 0), (2, 0), (2, 0), (1, 8)]


@pytest.mark.parametrize(("half", "width"), [(None, 4), ("float16", 2)])
def test_extra_versions_are_copies_of_the_weights_that_passes_read(half: str | None, width: int) -> None:
    layout = resident(10, ("velocity",), half=half)
    stage = budget(layout=layout, extra_versions=3)
    assert stage.extra_versions == 3 * 10 * width
    assert stage.peak == budget(layout=layout).peak + 3 * 10 * width


def test_stream_meets_its_update_with_microbatches_in_flight() -> None:
    """Two of three are open in a step on a bucket of 1000 entries, of which 10 exist: 16 bytes each."""
    layout = offloaded(10, ("moment_1", "moment_2"), bucket=1000)
    small = MicrobatchMemory(saved=5, transient=1, input=8)
    flush, stream = (budget(1, layout=layout, microbatch_memory=small, interval=one) for one in (FLUSH, STREAM))
    assert (flush.drains, flush.peak) == (True, 4 * 10 + 16 * 10)
    assert (stream.drains, stream.peak) == (False, 4 * 10 + 2 * 5 + 8 + 16 * 10)


@pytest.mark.parametrize(("overlaps_step", "scratch"), [(False, 160), (True, 160 + 70)])
def test_reduction_allocates_before_a_step_or_during_it(overlaps_step: bool, scratch: int) -> None:
    nothing = MicrobatchMemory(0, 0, 0)
    stage = budget(layout=OFFLOADED, microbatch_memory=nothing, reducing=70, overlaps_step=overlaps_step)
    assert stage.peak == 4 * 10 + scratch


def test_scratch_that_stays_is_counted_with_the_activations() -> None:
    stage = budget(1, layout=OFFLOADED, scratch_stays=True)
    assert stage.waiting == 8 + 16 * 10
    assert stage.peak == 4 * 10 + 3 * 100 + 20 + 8 + 16 * 10
    assert budget(1, layout=OFFLOADED).peak == 4 * 10 + 3 * 100 + 20 + 8, "the peak is in a pass"
