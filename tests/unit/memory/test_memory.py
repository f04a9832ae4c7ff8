"""Bytes of model states, the budget of a stage, and activation checkpoints, by the papers' formulas and by hand.

A rank of 10 weights with one moment takes 40 + 40 + 40 bytes in float32. A microbatch keeps 100 bytes, needs 20 more
while a pass runs, and arrives as a message of 8."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval, Place
from suite.memory.budget import Budget
from suite.memory.checkpointing import activations, checkpoint_interval, resolve_interval
from suite.memory.layout import (
    Layout,
    compressed,
    dense,
    mixed,
    mixed_precision,
    offload,
    offloaded,
    resident,
    samo,
    sparse,
    zero_1,
)
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


def test_activations_by_hand() -> None:
    """8 layers a stage, every 4th kept: 2 checkpoints of 6 microbatches, a segment's input, and its 4 layers."""
    assert activations(48, 6, 4) == 6 * 2 + 1 + 4
    assert activations(48, 1, 48) == 1 + 1 + 48
    assert activations(50, 5, Fraction(7, 2)) == Fraction(50 * 2, 7) + 1 + Fraction(7, 2)


def test_the_rule_takes_the_factor_closest_to_the_root() -> None:
    for layers, stages, interval in (
        (48, 6, 8),  # Table II, 12 billion: of 1 2 4 8 the closest to 6.93
        (48, 12, 4),
        (96, 24, 4),
        (96, 48, 2),
        (48, 2, 6),  # 6 and 8 are both factors of 24; 6.93 is closer to 6
        (96, 4, 8),  # 8 and 12 of 24, 9.80
        (90, 3, 10),  # 6 and 10 of 30, 9.49
        (36, 1, 6),  # the root itself
        (144, 9, 16),  # 8 and 16 are equally close to 12: 27 activations with 8, 26 with 16
        (7, 7, 1),
    ):
        assert checkpoint_interval(layers, stages) == interval, (layers, stages)
    for stages, legal in ((5, "4 stages"), (49, "48 stages"), (0, "1 stage")):
        with pytest.raises(InvalidRequest) as caught:
            checkpoint_interval(48, stages)
        assert caught.value.legal == legal


def test_setting_resolves_to_an_interval() -> None:
    cases: list[tuple[int | str | None, list[int], int | None]] = [
        (None, [3, 4], None),
        ("auto", [8] * 6, 8),
        ("auto", [2] * 24, 2),
        (1, [5, 3], 1),
        (4, [8] * 6, 4),
        (2, [6, 2, 0], 2),
    ]
    for setting, stages, interval in cases:
        assert resolve_interval(setting, stages) == interval, (setting, stages)


ADAM, SGDM = ("moment_1", "moment_2"), ("velocity",)
SINGLE, MIXED = dense(1000, ADAM), mixed_precision(dense(1000, ADAM))
AWAY = offload(bucket=10)
PHI = 1000
# a layout, and its bytes on the device always, in a step and in a bucket, and on the host
BYTES: list[tuple[Layout, int, int, int, int]] = [
    # 16 bytes per parameter with Adam in float32
    (SINGLE, 16 * PHI, 0, 0, 0),
    (dense(7, SGDM), 12 * 7, 0, 0, 0),
    (dense(7, ADAM, "float64"), 32 * 7, 0, 0, 0),
    # 2 + 2 in half precision, 4 + 4 in single, 8 of moments (AxoNN V-B, SAMO III-D)
    (MIXED, 20 * PHI, 0, 0, 0),
    (mixed(7, SGDM, "float64"), (2 + 2 + 8 + 8 + 8) * 7, 0, 0, 0),
    (resident(9, ADAM, half="bfloat16"), 20 * 9, 0, 0, 0),
    # SAMO Equation 2: 18 f + 4 f + 2 + 2 f = 24 f + 2 bytes per parameter, of which 2 f only at the end of a step
    (samo(250)(MIXED), 22 * 250 + 2 * PHI, 2 * 250, 0, 0),
    (samo(750)(MIXED), 20 * PHI - 2 * 750, 2 * 750, 0, 0),  # break-even at a sparsity of a quarter
    (samo(1000)(MIXED), 24 * PHI, 2 * PHI, 0, 0),
    # a copy is no larger than a bucket
    (samo(250, bucket=100)(MIXED), 22 * 250 + 2 * PHI, 2 * 100, 0, 0),
    # one precision: 4 bytes for each weight; a gradient, two moments, an index and a step's copy for each kept entry
    (samo(250)(SINGLE), 4 * PHI + 16 * 250, 4 * 250, 0, 0),
    (samo(600)(SINGLE), 16 * PHI - 4 * 600, 4 * 600, 0, 0),  # break-even at two fifths, not a quarter
    # 200 of 1000 entries are not pruned: 20 bytes for each of those, or 16 in one precision
    (samo(80, 800)(MIXED), 22 * 80 + 2 * 800 + 20 * 200, 2 * 80, 0, 0),
    (samo(80, 800)(SINGLE), 16 * 80 + 4 * 800 + 16 * 200, 4 * 80, 0, 0),
    # 4 bytes per parameter and 16 per entry of a bucket on the device, 12 per parameter in host memory (AxoNN V-B)
    (AWAY(MIXED), 4 * PHI, 0, 16 * 10, 12 * PHI),
    (offload(bucket=5000)(MIXED), 4 * PHI, 0, 16 * PHI, 12 * PHI),  # no larger than what there is
    (offload(bucket=10)(SINGLE), 8 * PHI, 0, 8 * 10, 8 * PHI),  # the only gradient stays
    # with both, 2 + 2 f bytes and the index stay on the device; a bucket is of kept entries, its half copy too
    (AWAY(samo(250)(MIXED)), 2 * PHI + 6 * 250, 0, (16 + 2) * 10, 12 * 250),
    (samo(250)(AWAY(MIXED)), 2 * PHI + 6 * 250, 2 * 250, 16 * 10, 12 * 250),
    # 2 + 2 bytes per parameter stay whole, 16 are shared out; a share that does not divide is rounded up
    (zero_1(4)(MIXED), 4 * PHI + 16 * 250, 0, 0, 0),
    (zero_1(3)(MIXED), 4 * PHI + 16 * 334, 0, 0, 0),
    # each replica compresses the whole gradient, so it needs to know where all of it goes: 2 + 2 f and 4 f bytes
    (zero_1(4)(samo(200)(MIXED)), 2 * PHI + (2 + 4) * 200 + 16 * 50, 2 * 50, 0, 0),
    # kept entries of a pruned network on the host
    (
        compressed(PHI, ADAM, half="float16", kept=80, of=800, bucket=10, offloaded=True),
        6 * 80 + 2 * 800 + 4 * 200,
        0,
        (16 + 2) * 10,
        12 * 280,
    ),
    # sparse kernels keep nothing dense: 2 + 2 in half precision, 4 + 4 + 8 in single, 4 for the index
    (sparse(PHI, ADAM, sparsity=0.9), 24 * 100, 0, 0, 0),
]


def test_bytes_of_every_layout() -> None:
    for layout, always, step, bucket, host in BYTES:
        assert layout.bytes() == always + step + bucket, layout
        lives = [layout.bytes(life=life) for life in ("always", "step", "bucket")]
        assert [*lives, layout.bytes(home="host")] == [always, step, bucket, host], layout


@pytest.mark.parametrize(("half", "always", "bucket"), [("float16", 4, 16), (None, 8, 8)], ids=["mixed", "full"])
def test_an_offloaded_layout_holds_whole_buckets(half: str | None, always: int, bucket: int) -> None:
    """AxoNN V-B: 4 phi + 16 bsize; a set of buckets more costs as much again, as long as there are buckets for it."""
    for sets in (1, 2, 3):
        for entries, held in ((1000, 100 * sets), (150, 100 * min(sets, 2)), (70, 70)):
            layout = offloaded(entries, ADAM, bucket=100, half=half, sets=sets)
            assert layout.bytes(life="always") == always * entries
            assert layout.bytes(life="bucket") == bucket * held, (entries, sets)
            assert layout.bytes(home="host") == (12 if half else 8) * entries
