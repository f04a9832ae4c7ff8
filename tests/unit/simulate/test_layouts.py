"""Search over layouts of a language model: legal layouts, memory before simulation, and the order of the fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName, Unsupported
from suite.simulate.network.machine import Link
from suite.simulate.operations.layouts import (
    divisors,
    layouts,
    least_seconds,
    named_schedule,
    one_device,
    pipeline_schedules,
    ranked,
)
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.states import fullest_device
from suite.simulate.operations.step import simulate_step
from suite.workload.language_model import LanguageModel
from tests.support.modelled import machine
from tests.support.refusals import refused

MODEL = LanguageModel(16, 2048, 16, 2048, 32000, kv_heads=4, ffn=5504)
MACHINE = machine(
    **{"name": "nodes_of_eight", "devices_per_node": 8, "adapters": 8, "memory": 40e9, "memory_bandwidth": 2e12},
    **{"peak": {"float16": 300e12, "bfloat16": 300e12}, "family": "a100", "compute_units": 108},
    **{"within": Link(3e-6, 300e9), "between": Link(4e-6, 25e9), "host": Link(1e-5, 25e9)},
)
BASE = one_device(MODEL, MACHINE, "compiled", 64)
TIGHT = replace(BASE, machine=replace(MACHINE, memory=14e9))


@pytest.mark.parametrize("devices", [1, 6, 16])
def test_axes_multiply_to_the_devices_and_divide_heads_and_batch(devices: int) -> None:
    candidates = list(layouts(BASE, devices))
    assert candidates
    assert len(set(map(repr, candidates))) == len(candidates)
    for setup in candidates:
        assert setup.tensor * setup.pipeline * setup.data * setup.context == devices
        assert MODEL.kv_heads % setup.tensor == MODEL.heads % setup.tensor == 0
        assert setup.tensor <= MACHINE.devices_per_node
        assert BASE.batch % (setup.microbatch * setup.data) == 0
        assert setup.pipeline <= sum(setup.blocks) == MODEL.layers
        assert min(setup.blocks) >= 1
        assert setup.sharding in (("optimizer", "parameters") if setup.data > 1 else ("none",))


def test_each_schedule_sharding_and_recomputation_is_tried() -> None:
    candidates = list(layouts(BASE, 16))
    names = {"none", "one_f_one_b", "zb_h1", "interleaved", "zbv"}
    assert {named_schedule(setup).name for setup in candidates} == names
    assert {setup.microbatch for setup in candidates} == {1, 2, 4, 8}
    assert {setup.sharding for setup in candidates} == {"none", "optimizer", "parameters"}
    assert {setup.recompute for setup in candidates} == {"none", "full"}
    assert {(setup.context, setup.devices) for setup in layouts(BASE, 8, context=(1, 2))} == {(1, 8), (2, 8)}


def test_selective_recomputation_is_tried_where_scores_are_kept() -> None:
    unfused = one_device(MODEL, MACHINE, "unfused", 64)
    assert {setup.recompute for setup in layouts(unfused, 2)} == {"none", "selective", "full"}
    flash = next(setup for setup in layouts(BASE, 2) if setup.recompute == "none")
    selective = replace(flash, recompute="selective")
    assert fullest_device(selective) == fullest_device(flash)
    assert simulate_step(selective).seconds > simulate_step(flash).seconds


def test_several_stages_per_rank_are_equal_or_have_shorter_ends() -> None:
    by_layers = {layers: [(s.name, s.chunks) for s in pipeline_schedules(4, layers)] for layers in (16, 14, 15)}
    every = [("one_f_one_b", 1), ("zb_h1", 1), ("interleaved", 2), ("interleaved", 4), ("zbv", 2)]
    assert by_layers[16] == every
    assert by_layers[14] == [entry for entry in every if entry != ("interleaved", 4)]  # 16 stages for 14 blocks
    assert by_layers[15] == every[:2]
    interleaved = [s for s in layouts(replace(BASE, model=replace(MODEL, layers=14)), 4) if s.stages == 8]
    assert {setup.blocks for setup in interleaved} == {(1, 2, 2, 2, 2, 2, 2, 1)}


def test_the_ranking_is_that_of_simulating_every_layout_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, steps = list(layouts(TIGHT, 4)), []
    for setup in candidates:
        step = simulate_step(setup)
        assert sum(fullest_device(setup).values()) == step.peak_memory
        assert step.seconds >= least_seconds(setup) * (1 - 1e-9)
        assert step.fits is (step.peak_memory <= TIGHT.machine.memory)
        steps += [step] if step.fits else []
    found = ranked(candidates)
    assert (found.tried, found.fit) == (len(candidates), len(steps))
    assert 0 < found.fit < found.tried
    seconds = sorted(step.seconds for step in steps)
    assert [step.seconds for step in found.steps] == seconds
    simulated = list[TrainingSetup]()
    target = "suite.simulate.operations.layouts.simulate_step"
    monkeypatch.setattr(target, lambda setup: simulated.append(setup) or simulate_step(setup))
    best = ranked(candidates, 5)
    assert ([step.seconds for step in best.steps], best.tried, best.fit) == (seconds[:5], found.tried, found.fit)
    assert len(simulated) < found.fit, "slow layouts are not simulated"


def test_impossible_searches_are_refused() -> None:
    with refused(DoesNotFit, "devices", 2, rule="3.0 GB"):
        ranked(layouts(replace(BASE, machine=replace(MACHINE, memory=3e9)), 2), 5)
    with refused(InvalidRequest, subject="no layout is given"):
        ranked(layouts(replace(BASE, batch=1), 97))
    with refused(UnknownName, "generation", "compild", legal="compiled"):
        one_device(MODEL, MACHINE, "compild", 8)
    with refused(Unsupported, "generation", "fp8", rule="float8", legal="generation=compiled"):
        one_device(MODEL, MACHINE, "fp8", 8)


def test_half_precision_is_that_of_the_machine() -> None:
    older = replace(MACHINE, peak={"float16": 125e12})
    assert [one_device(MODEL, on, "fused", 8).precision for on in (older, MACHINE)] == ["float16", "bfloat16"]


def test_divisors_ascend() -> None:
    assert [divisors(number) for number in (1, 7, 36)] == [(1,), (1, 7), (1, 2, 3, 4, 6, 9, 12, 18, 36)]
