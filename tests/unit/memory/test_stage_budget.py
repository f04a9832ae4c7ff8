"""Memory budget of one pipeline stage, each term by hand.

A rank of 10 weights with one moment: float32 takes 40 + 40 + 40 bytes. A microbatch keeps 100 bytes, needs 20 more
while a pass runs, and arrives as a message of 8. In mixed precision a step on the host's states needs buckets too.
"""

from __future__ import annotations

from typing import Any

import pytest

from suite.core.op import FlushInterval, Place
from suite.memory import Budget, dense, offloaded, resident
from suite.memory.stage_budget import stage_budget
from suite.schedule import MessageDriven, OneFOneB
from suite.workload.stage_memory import MicrobatchMemory

LAYOUT = dense(10, ("velocity",))
HELD = MicrobatchMemory(saved=100, transient=20, input=8)
FLUSH, STREAM = FlushInterval(0, 8, None, 0), FlushInterval(0, 24, 1, 0)
NOTHING_MORE: dict[str, Any] = {"extra_versions": 0, "reducing": 0, "overlaps_step": False, "scratch_stays": False}


def budget(stage: int = 0, stages: int = 4, **changes: Any) -> Budget:
    """Of 1F1B on four stages, where stage s has 4 - s microbatches in flight."""
    usual: dict[str, Any] = {
        "layout": LAYOUT,
        "microbatch_memory": HELD,
        "schedule": OneFOneB(),
        "interval": FLUSH,
        **NOTHING_MORE,
    }
    return stage_budget(place=Place(stage, stages), **{**usual, **changes})


def test_first_stage_keeps_microbatches_in_flight_and_waits_for_none() -> None:
    stage = budget()
    assert stage == Budget(LAYOUT, activations=100, in_flight=4, working=20)
    assert stage.peak == 3 * 40 + 4 * 100 + 20


def test_message_waits_for_each_microbatch_open_on_the_stage_before() -> None:
    """1F1B has one more open on the stage before; a message-driven last stage has one of four."""
    assert [budget(stage).waiting for stage in range(4)] == [0, 8, 8, 8]
    assert [budget(stage, schedule=MessageDriven()).waiting for stage in range(4)] == [0, 0, 0, 3 * 8]
    assert budget(3).peak == 3 * 40 + 1 * 100 + 20 + 8


def test_few_microbatches_bound_what_is_in_flight_and_what_waits() -> None:
    two = FlushInterval(0, 2, None, 0)
    assert [budget(stage, interval=two).in_flight for stage in range(4)] == [2, 2, 2, 1]
    assert [budget(stage, interval=two).waiting for stage in range(4)] == [0, 0, 0, 8]


@pytest.mark.parametrize(("half", "width"), [(None, 4), ("float16", 2)])
def test_extra_versions_are_copies_of_the_weights_that_passes_read(half: str | None, width: int) -> None:
    layout = resident(10, ("velocity",), half=half)
    assert layout.read.bytes == 10 * width
    stage = budget(layout=layout, extra_versions=3)
    assert stage.extra_versions == 3 * 10 * width
    assert stage.peak == budget(layout=layout).peak + 3 * 10 * width


def test_stream_meets_its_update_with_microbatches_in_flight() -> None:
    """Two of three are open in a step on a bucket of 1000 entries, of which 10 exist: 16 bytes each."""
    layout = offloaded(10, ("moment_1", "moment_2"), bucket=1000)
    assert budget(interval=FLUSH).drains
    assert not budget(interval=STREAM).drains
    small = MicrobatchMemory(saved=5, transient=1, input=8)
    assert budget(1, layout=layout, microbatch_memory=small).peak == 4 * 10 + 16 * 10
    assert budget(1, layout=layout, microbatch_memory=small, interval=STREAM).peak == 4 * 10 + 2 * 5 + 8 + 16 * 10


@pytest.mark.parametrize(("overlaps_step", "scratch"), [(False, 160), (True, 160 + 70)])
def test_reduction_allocates_before_a_step_or_during_it(overlaps_step: bool, scratch: int) -> None:
    layout = offloaded(10, ("moment_1", "moment_2"), bucket=10)
    stage = budget(layout=layout, microbatch_memory=MicrobatchMemory(0, 0, 0), reducing=70, overlaps_step=overlaps_step)
    assert (stage.reducing, stage.overlaps_step) == (70, overlaps_step)
    assert stage.peak == 4 * 10 + scratch


def test_scratch_that_stays_is_counted_with_the_activations() -> None:
    layout = offloaded(10, ("moment_1", "moment_2"), bucket=10)
    stage = budget(1, layout=layout, scratch_stays=True)
    assert stage.waiting == 8 + 16 * 10
    assert stage.peak == 4 * 10 + 3 * 100 + 20 + 8 + 16 * 10
    assert budget(1, layout=layout).peak == 4 * 10 + 3 * 100 + 20 + 8, "the peak is in a pass"
