"""Nearest public cells of a training setup: family first, then size, devices and settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.papers.public.adapter import to_setup
from suite.papers.public.cells import load_cells
from suite.papers.public.nearest import DIFFERENT, distance, nearest_answers, nearest_cells, schedule_kind
from suite.schedule import ZBV, ControllableMemory, OneFOneB, Staircase

CELLS = load_cells()
BY_ID = {cell.id: cell for cell in CELLS}
ONE = BY_ID["titan_h100_fsdp.8b_n128_compile"]


def test_schedules_have_kinds() -> None:
    kinds = [
        (None, "none"),
        (OneFOneB(), "plain"),
        (Staircase(2, lead=2), "interleaved"),
        (Staircase(lead=1, split=True), "split"),
        (ZBV(), "V"),
        (ControllableMemory("half"), "V"),
    ]
    assert [schedule_kind(schedule) for schedule, _ in kinds] == [kind for _, kind in kinds]


def test_distance_is_zero_of_itself_and_counts_sizes_and_settings() -> None:
    setup = to_setup(ONE)
    assert distance(setup, setup) == 0
    twice = replace(setup, data=2 * setup.data)
    assert distance(setup, twice) == distance(twice, setup) == pytest.approx(0.693, abs=1e-3)
    other = replace(twice, sharding="none", machine=replace(setup.machine, family="a100"))
    assert distance(setup, other) == pytest.approx(0.693 + 2 * DIFFERENT, abs=1e-3)
    assert distance(setup, replace(setup, generation=replace(setup.generation, name="fp8"))) == DIFFERENT
    pipeline = replace(setup, schedule=OneFOneB(), pipeline=2, data=setup.data // 2)
    assert distance(setup, pipeline) == DIFFERENT


def test_a_cell_is_nearest_to_itself_unless_left_out() -> None:
    assert nearest_cells(to_setup(ONE), CELLS, count=1) == (ONE,)
    near = nearest_cells(to_setup(ONE), CELLS, [ONE.id])
    assert len(near) == 5
    assert ONE not in near
    distances = [distance(to_setup(ONE), to_setup(cell)) for cell in near]
    assert distances == sorted(distances)


def test_cells_of_the_family_precede_nearer_ones() -> None:
    near, far = BY_ID["megatron_a100_weak.gpt_1.7b"], BY_ID["megatron_a100_weak.gpt_1t"]
    setup = to_setup(near)
    foreign = replace(near, machine=replace(near.machine, gpu="V100-32"), precision="fp16")
    assert distance(setup, to_setup(foreign)) < distance(setup, to_setup(far))
    assert nearest_cells(setup, [foreign, far], count=2) == (far, foreign)


def test_only_scored_cells_without_a_refusal_are_chosen() -> None:
    changed = [replace(ONE, quality="low"), replace(ONE, status="oom"), replace(ONE, schedule="unheard", pp=2, dp=64)]
    assert not nearest_cells(to_setup(ONE), changed)


def test_answers_use_the_constant_of_each_cell() -> None:
    pair = ("h100", "compiled")
    slow, fast = (nearest_answers(to_setup(ONE), [ONE], {pair: share})[0] for share in (0.4, 0.8))
    assert slow.cell == ONE
    assert slow.error < fast.error
