"""Search over layouts of a language model: legal layouts, memory before simulation, and the order of the fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName, Unsupported
from suite.simulate.network.machine import Link, Machine
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
from tests.support.refusals import refused

MODEL = LanguageModel(16, 2048, 16, 2048, 32000, kv_heads=4, ffn=5504)
MACHINE = Machine(
    "nodes_of_eight",
    8,
    memory=40e9,
    peak={"float16": 300e12, "bfloat16": 300e12},
    memory_bandwidth=2e12,
    within=Link(3e-6, 300e9),
    between=Link(4e-6, 25e9),
    adapters=8,
    host=Link(1e-5, 25e9),
    family="a100",
    compute_units=108,
)
BASE = one_device(MODEL, MACHINE, "compiled", 64)
TIGHT = replace(BASE, machine=replace(MACHINE, memory=14e9))


@pytest.mark.parametrize("devices", [1, 6, 16, 24])
def test_axes_multiply_to_the_devices_and_divide_heads_and_batch(devices: int) -> None:
    candidates = list(layouts(BASE, devices))
    assert candidates
    for setup in candidates:
        assert setup.tensor * setup.pipeline * setup.data * setup.context == devices
        assert MODEL.kv_heads % setup.tensor == MODEL.heads % setup.tensor == 0
        assert setup.tensor <= MACHINE.devices_per_node
        assert BASE.batch % (setup.microbatch * setup.data) == 0
        assert setup.pipeline <= MODEL.layers
        assert sum(setup.blocks) == MODEL.layers
        assert min(setup.blocks) >= 1


def test_no_layout_is_tried_twice() -> None:
    candidates = list(layouts(BASE, 16))
    assert len(set(map(repr, candidates))) == len(candidates)


def test_each_schedule_sharding_and_recomputation_is_tried() -> None:
    candidates = list(layouts(BASE, 16))
    assert {named_schedule(setup).name for setup in candidates} == {
        *("none", "one_f_one_b", "zb_h1", "interleaved", "zbv")
    }
    assert {setup.microbatch for setup in candidates} == {1, 2, 4, 8}
    assert {setup.sharding for setup in candidates if setup.data > 1} == {"optimizer", "parameters"}
    assert {setup.sharding for setup in candidates if setup.data == 1} == {"none"}
    assert {setup.recompute for setup in candidates} == {"none", "full"}


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


def test_context_parallel_ranks_count_as_devices() -> None:
    sizes = {setup.context for setup in layouts(BASE, 8, context=(1, 2))}
    assert sizes == {1, 2}
    assert all(setup.devices == 8 for setup in layouts(BASE, 8, context=(1, 2)))


def test_memory_before_simulation_is_that_of_the_simulated_step() -> None:
    for setup in list(layouts(BASE, 8))[::7]:
        assert sum(fullest_device(setup).values()) == simulate_step(setup).peak_memory


def test_no_layout_over_memory_is_ranked() -> None:
    candidates = list(layouts(TIGHT, 8))
    found = ranked(candidates)
    assert found.tried == len(candidates)
    assert 0 < found.fit == len(found.steps) < found.tried
    assert all(step.peak_memory <= TIGHT.machine.memory for step in found.steps)
    fitting = [setup for setup in candidates if simulate_step(setup).fits]
    assert len(fitting) == found.fit


def test_ranks_ascend_and_the_best_are_those_of_a_full_search() -> None:
    candidates = list(layouts(TIGHT, 8))
    every, best = ranked(candidates), ranked(candidates, 5)
    seconds = [step.seconds for step in every.steps]
    assert seconds == sorted(seconds)
    assert [step.seconds for step in best.steps] == seconds[:5]
    assert (best.tried, best.fit) == (every.tried, every.fit)


def test_slow_layouts_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = list[TrainingSetup]()

    def counted(setup: TrainingSetup) -> object:
        simulated.append(setup)
        return simulate_step(setup)

    monkeypatch.setattr("suite.simulate.operations.layouts.simulate_step", counted)
    found = ranked(layouts(BASE, 8), 1)
    assert len(simulated) < found.fit / 4


def test_a_step_takes_at_least_its_least_seconds() -> None:
    for step in ranked(layouts(BASE, 8)).steps:
        assert step.seconds >= least_seconds(step.setup) * (1 - 1e-9)


def test_a_model_that_fits_nowhere_is_refused() -> None:
    tiny = replace(BASE, machine=replace(MACHINE, memory=3e9))
    with refused(DoesNotFit, "devices", 2, rule="3.0 GB", legal="more devices"):
        ranked(layouts(tiny, 2), 5)


def test_a_search_without_layouts_is_refused() -> None:
    with refused(InvalidRequest, subject="no layout is given", rule="at least one layout"):
        ranked(layouts(replace(BASE, batch=1), 97))


def test_an_unknown_generation_and_a_missing_precision_are_refused() -> None:
    with refused(UnknownName, "generation", "compild", legal="did you mean 'compiled'?"):
        one_device(MODEL, MACHINE, "compild", 8)
    with refused(Unsupported, "generation", "fp8", rule="float8", legal="generation=compiled"):
        one_device(MODEL, MACHINE, "fp8", 8)


def test_half_precision_is_that_of_the_machine() -> None:
    older = replace(MACHINE, peak={"float16": 125e12})
    assert one_device(MODEL, older, "fused", 8).precision == "float16"
    assert BASE.precision == "bfloat16"


def test_divisors_ascend() -> None:
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(1) == (1,)
    assert divisors(7) == (1, 7)
