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
from suite.memory.layout import dense, offloaded, resident
from suite.memory.stage_budget import stage_budget
from suite.schedule import MessageDriven, OneFOneB
from suite.workload.stage_memory import MicrobatchMemory

DENSE = dense(10, ("velocity",))


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
