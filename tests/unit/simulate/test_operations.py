"""The cost model from operations up against closed forms, and the search over layouts of a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.core.errors import DoesNotFit, InvalidRequest, UnknownName, Unsupported
from suite.core.protocols import Schedule
from suite.schedule import ZBV, OneFOneB, Staircase
from suite.simulate.network.machine import Link
from suite.simulate.operations import states
from suite.simulate.operations.block import BlockKernels
from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds, bandwidth, gather_seconds
from suite.simulate.operations.generation import SoftwareGeneration, generations
from suite.simulate.operations.kernels import DeviceRates, MatrixProduct, tile_share
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
from suite.simulate.operations.states import fullest_device, memory, parameters, saved_bytes
from suite.simulate.operations.step import StageCosts, TrainingSimulator, simulate_step
from suite.workload import LanguageModel, Transformer
from tests.support.modelled import machine
from tests.support.refusals import refused

PEAK = {"float8": 2e15, "bfloat16": 1e15, "float16": 1e15, "tensorfloat32": 5e14, "float32": 1e14}
MACHINE = machine(
    **{"name": "lab", "devices_per_node": 8, "adapters": 8, "memory": 80e9, "memory_bandwidth": 2e12, "peak": PEAK},
    **{"within": Link(0.0, 400e9), "between": Link(0.0, 50e9), "host": Link(0.0, 60e9)},
    **{"family": "lab", "compute_units": 100},
)
FREE = ("start", "contention", "pause", "dispatch", "collective", "hop", "network_hop")
FULL = ("traffic", "within", "between")
IDEAL = SoftwareGeneration(
    products={"lab": 1.0},
    attention="flash2",
    flash={"flash2": {"other": (1.0, 1.0)}},
    name="ideal",
    **dict.fromkeys(FREE, 0.0),
    **dict.fromkeys(FULL, 1.0),
)
MODEL = LanguageModel(16, 4096, 32, 2048, 1024, kv_heads=8, ffn=8192)
GPT = LanguageModel(1, 1024, 16, 512, 1000, kv_heads=16, ffn=4096, gated=False)
DROPS = replace(IDEAL, dropout=True)
SINGLE = {"precision": "tensorfloat32", "attention": "unfused"}


def setup(schedule: Schedule | None = None, **changed: Any) -> TrainingSetup:
    ones: Any = {"tensor": 1, "pipeline": 1, "data": 1, "context": 1, "microbatch": 1, "batch": 8}
    return replace(TrainingSetup(MODEL, MACHINE, IDEAL, schedule, **ones), **changed)


# -- model and kernels -------------------------------------------------------------------------------------------------


def test_counts_of_models_by_hand() -> None:
    gpt = Transformer(4, 64, 4, 32, 100)
    same = LanguageModel(4, 64, 4, 32, 100, kv_heads=4, ffn=256, gated=False, tied=True)
    assert (same.parameters, same.flops) == (gpt.parameters, sum(layer.flops for layer in gpt.shapes()))
    assert same.block().owed == gpt.block().owed == gpt.block().deferred // (24 * 64 * 64) * 16 * 64 * 4
    for kv_heads, width in ((32, 4096), (8, 1024), (1, 128)):
        model = replace(MODEL, kv_heads=kv_heads)
        assert model.key_width == width
        assert model.block_weights == 2 * 4096 * 4096 + 2 * 4096 * width + 3 * 4096 * 8192


def test_products_of_a_block_have_the_flops_of_its_weights() -> None:
    for tensor in (1, 2, 8):
        flops = sum(product.flops for product in BlockKernels(setup(tensor=tensor)).products)
        assert flops * tensor == 2 * MODEL.sequence * MODEL.block_weights


def test_a_product_of_whole_waves_reaches_the_full_rate() -> None:
    assert tile_share(256 * 10, 128 * 10, 4096, 1, 100, 0.0) == 1.0
    assert tile_share(256 * 10, 128 * 10, 4096, 1, 100, 4096.0) == 0.5
    assert tile_share(256 * 101, 128, 4096, 1, 100, 0.0) < 0.9  # one tile more needs a second wave


def test_a_kernel_takes_its_flops_or_its_bytes() -> None:
    rates, large = DeviceRates(MACHINE, IDEAL), MatrixProduct(256 * 100, 128 * 100, 4096)
    assert rates.product(large, "bfloat16") == pytest.approx(large.flops / 1e15)
    assert rates.product(large, "float8") == pytest.approx(large.flops / 2e15)
    uneven = MatrixProduct(256 * 100, 128 * 100, 4100)  # on the vector units, in single precision
    assert rates.product(uneven, "bfloat16") == pytest.approx(uneven.flops / 1e14)
    thin = MatrixProduct(256 * 100, 128, 8)
    assert rates.product(thin, "bfloat16") == pytest.approx(((25600 + 128) * 8 * 2 + 25600 * 128 * 2) / 2e12)


def test_seconds_of_a_block_by_hand() -> None:
    flash, unfused, half = (BlockKernels(setup(**each)) for each in ({}, {"attention": "unfused"}, {"context": 2}))
    assert flash.attention[0] == pytest.approx(4 * 2048**2 * 4096 * 0.5 / 1e15)  # it moves no scores
    assert flash.attention[1] == pytest.approx(2.5 * flash.attention[0])
    assert unfused.attention[0] > 10 * flash.attention[0]
    assert half.attention[0] == pytest.approx(flash.attention[0] / 2)  # context parallelism divides a sequence
    assert half.setup.tokens == flash.setup.tokens / 2
    assert half.context_parallel[0] > 0 == flash.context_parallel[0]
    launched = BlockKernels(setup(generation=replace(IDEAL, dispatch=1.0, kernels=20))).block
    assert (launched.forward, launched.backward) == (20.0, pytest.approx(40.0))
    split = BlockKernels(setup(tensor=8))
    assert split.tensor_parallel[0] == pytest.approx(2 * 2 * 7 / 8 * 2048 * 4096 * 2 / 400e9)  # two sums per pass
    hidden = BlockKernels(setup(tensor=8, generation=replace(IDEAL, tensor_overlap=(1.0, 1.0))))
    assert 0 < hidden.tensor_parallel[0] < split.tensor_parallel[0]


@pytest.mark.parametrize(
    ("group", "rate"),
    [
        (SpacedRanks(8), 400e9),  # inside a node
        (SpacedRanks(64), 400e9),  # eight adapters of 50 GB/s carry what the links of the node would
        (SpacedRanks(4, 8), 50e9),  # one rank per node has one adapter
        (SpacedRanks(8, 4), 100e9),
        (SpacedRanks(2, 64), 50e9),
    ],
)
def test_a_group_has_the_adapters_of_its_ranks(group: SpacedRanks, rate: float) -> None:
    assert bandwidth(group, MACHINE, IDEAL) == rate
    assert gather_seconds(8e9, group, MACHINE, IDEAL) == pytest.approx((group.size - 1) / group.size * 8e9 / rate)
    hops = replace(IDEAL, hop=1.0, network_hop=100.0)
    nodes = -(-group.size // group.per_node(MACHINE))  # a ring passes every rank, and every node once
    assert gather_seconds(1e-9, group, MACHINE, hops) == pytest.approx(group.size - nodes + 100 * (nodes - 1))
    assert all_reduce_seconds(8e9, group, MACHINE, IDEAL) == 2 * gather_seconds(8e9, group, MACHINE, IDEAL)
    assert all_reduce_seconds(8e9, SpacedRanks(1), MACHINE, IDEAL) == 0.0


# -- steps -------------------------------------------------------------------------------------------------------------


def test_microbatches_of_one_device_follow_each_other() -> None:
    costs = StageCosts(setup())
    expected = 8 * (costs.passes[0].forward + costs.passes[0].backward) + costs.step(0)
    assert simulate_step(setup()).seconds == pytest.approx(expected)
    assert StageCosts(setup(offload=True)).step(0) == pytest.approx(2 * 12 * parameters(setup(), 0) / 60e9)


def test_interleaving_and_zero_bubble_shorten_a_step() -> None:
    schedules = (Staircase(lead=2, split=True), Staircase(2, lead=2), OneFOneB())
    zero, interleaved, plain = (simulate_step(setup(s, pipeline=4, batch=8)).seconds for s in schedules)
    assert zero < interleaved < plain
    for schedule in (*schedules, ZBV()):  # a long pipeline is extrapolated from its steady state
        long = TrainingSimulator(setup(schedule, pipeline=4, batch=70))
        assert long._pipeline() == pytest.approx(long.simulation(70).makespan, rel=3e-3)


def test_recomputation_repeats_a_forward_pass() -> None:
    kinds = ("none", "full", "selective", "alternate")
    none, full, selective, alternate = (BlockKernels(setup(recompute=kind)).block for kind in kinds)
    assert full.backward == pytest.approx(none.backward + none.forward)
    assert alternate.backward == pytest.approx(none.backward + none.forward / 2)
    assert none.backward < selective.backward < alternate.backward


def test_communication_hides_behind_passes() -> None:
    local, sharded = setup(data=8), setup(data=8, sharding="parameters")
    assert simulate_step(sharded).seconds < 1.1 * simulate_step(local).seconds
    slow = replace(sharded, machine=replace(MACHINE, within=Link(0.0, 1e9)))
    assert simulate_step(slow).seconds > 3 * simulate_step(sharded).seconds
    plain = StageCosts(local)
    hidden = StageCosts(setup(data=8, generation=replace(IDEAL, reduction_overlap=True)))
    assert plain.reduction(0) / 16 <= hidden.reduction(0) < plain.reduction(0) - hidden.passes[0].backward / 4


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"data": 8, "sharding": "none"}, [2, 4, 12]),
        ({"data": 8, "sharding": "optimizer"}, [2, 4, 12 / 8]),
        ({"data": 8, "sharding": "gradients"}, [2, 4 / 8, 12 / 8]),
        (SINGLE, [4, 4, 8]),  # single precision has no copy of the weights
    ],
)
def test_bytes_of_states_per_parameter(changed: dict[str, Any], expected: list[float]) -> None:
    kinds = memory(setup(**changed), 0, 1)
    found = [kinds[name] / MODEL.parameters for name in ("weights", "gradients", "optimizer states")]
    assert found == pytest.approx(expected)


def test_saved_bytes_follow_korthikanti() -> None:
    """A block with dropout saves s h (34 + 5 a s / h) bytes (Korthikanti et al. 2022, Equation 1)."""
    drops = setup(model=GPT, attention="fused_softmax", generation=DROPS)
    saved = saved_bytes(drops)
    assert saved == pytest.approx(drops.tokens * 1024 * (34 + 5 * 16 * 512 / 1024), rel=0.06)
    assert saved_bytes(replace(drops, tensor=4, sequence_parallel=True)) == pytest.approx(saved / 4)
    assert saved / 4 < saved_bytes(replace(drops, tensor=4)) < saved
    unfused = replace(drops, attention="unfused")
    without = replace(unfused, dropout=False)  # it replaces that of the generation
    assert (unfused.drops, without.drops) == (True, False)
    assert saved_bytes(unfused) - saved_bytes(without) == pytest.approx(drops.tokens * (2 * 1024 + 3 * 512 * 16))
    assert BlockKernels(unfused).attention[0] > BlockKernels(without).attention[0]
    single = setup(**SINGLE)
    assert BlockKernels(single).activation == 2 * BlockKernels(setup()).activation
    assert saved_bytes(single) > saved_bytes(setup(attention="fused_softmax"))


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "changed", "kind", "key"),
    [
        *(
            (setup(), {name: "none9"}, UnknownName, name)
            for name in ("precision", "recompute", "attention", "sharding")
        ),
        (setup(), {"precision": "float4"}, UnknownName, "peak of lab for type"),
        (setup(), {"data": 0}, InvalidRequest, "data"),
        (setup(), {"pipeline": 2}, InvalidRequest, "pipeline"),
        (setup(), {"schedule": OneFOneB(), "pipeline": 19}, InvalidRequest, ""),
        (setup(**SINGLE), {"attention": "flash2"}, InvalidRequest, "attention"),
        (MODEL, {"layers": 0}, InvalidRequest, "model.shape.layers"),
        (MODEL, {"kv_heads": 5}, InvalidRequest, "model.shape.kv_heads"),
        (IDEAL, {"traffic": 0.0}, InvalidRequest, "generation.traffic"),
        (IDEAL, {"products": {"lab": 1.5}}, InvalidRequest, "generation.products.lab"),
    ],
)
def test_impossible_settings_are_refused(
    base: Any, changed: dict[str, Any], kind: type[InvalidRequest], key: str
) -> None:
    with refused(kind, key):
        replace(base, **changed)


# -- constants ---------------------------------------------------------------------------------------------------------


def test_every_generation_has_shares_for_every_flash_kernel() -> None:
    assert set(generations()) == {"unfused", "fused", "megatron", "flash", "compiled", "fp8", "fp4"}
    for generation in generations().values():
        assert {"flash1", "flash2", "flash3"} <= set(generation.flash)
        assert set(generation.flash_version.values()) <= set(generation.flash)
    for name, family, kernel in (("flash", "h100", 1), ("fp8", "h100", 2), ("fp8", "blackwell", 3)):
        assert generations()[name].flash_kernel(family) == f"flash{kernel}"


SWITCHES = {"attention", "flash_version", "name", "dropout", "fused_elementwise", "fused_rotary", "reduction_overlap"}
SWITCHES |= {"gathered_logits", "blocking_messages"}
SOURCES = Path(states.__file__).with_name("sources.yaml")
FORMATS = ("HALF", "FULL")  # bytes of a number, which no source gives


def numbers(value: Any) -> Iterator[float]:
    """Numbers inside the value of a constant."""
    if isinstance(value, Mapping):
        yield from (number for each in value.values() for number in numbers(each))
    elif isinstance(value, tuple):
        yield from value
    else:
        yield float(value)


def unsourced() -> list[str]:
    """Constants of generations and of the memory model without a source or outside their range, and vice versa."""
    names = {field.name for field in fields(SoftwareGeneration)} - SWITCHES
    values = {name: [n for each in generations().values() for n in numbers(getattr(each, name))] for name in names}
    for name, value in vars(states).items():
        if name.isupper() and name not in FORMATS and isinstance(value, int | float):
            values[f"memory.{name.lower()}"] = [float(value)]
    sources = {each["constant"]: each for each in yaml.safe_load(SOURCES.read_text(encoding="utf-8"))}
    bad = sorted(values.keys() ^ sources.keys())
    for name in values.keys() & sources.keys():
        low, high = sources[name]["range"]
        if not sources[name]["source"] or not all(low <= value <= high for value in values[name]):
            bad.append(name)
    return bad


def test_every_constant_has_a_source_and_lies_in_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unsourced() == []
    monkeypatch.setattr(states, "GUESSED", 1.3, raising=False)
    assert unsourced() == ["memory.guessed"]
    monkeypatch.delattr(states, "GUESSED")
    monkeypatch.setattr(states, "CONTEXT", 9e9)
    assert unsourced() == ["memory.context"]


# -- search over layouts -----------------------------------------------------------------------------------------------

LAYERED = LanguageModel(16, 2048, 16, 2048, 32000, kv_heads=4, ffn=5504)
NODES = machine(
    **{"name": "nodes_of_eight", "devices_per_node": 8, "adapters": 8, "memory": 40e9, "memory_bandwidth": 2e12},
    **{"peak": {"float16": 300e12, "bfloat16": 300e12}, "family": "a100", "compute_units": 108},
    **{"within": Link(3e-6, 300e9), "between": Link(4e-6, 25e9), "host": Link(1e-5, 25e9)},
)
BASE = one_device(LAYERED, NODES, "compiled", 64)
TIGHT = replace(BASE, machine=replace(NODES, memory=14e9))


@pytest.mark.parametrize("devices", [1, 6, 16])
def test_axes_multiply_to_the_devices_and_divide_heads_and_batch(devices: int) -> None:
    candidates = list(layouts(BASE, devices))
    assert candidates
    assert len(set(map(repr, candidates))) == len(candidates)
    for setup in candidates:
        assert setup.tensor * setup.pipeline * setup.data * setup.context == devices
        assert LAYERED.kv_heads % setup.tensor == LAYERED.heads % setup.tensor == 0
        assert setup.tensor <= NODES.devices_per_node
        assert BASE.batch % (setup.microbatch * setup.data) == 0
        assert setup.pipeline <= sum(setup.blocks) == LAYERED.layers
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
    unfused = one_device(LAYERED, NODES, "unfused", 64)
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
    interleaved = [s for s in layouts(replace(BASE, model=replace(LAYERED, layers=14)), 4) if s.stages == 8]
    assert {setup.blocks for setup in interleaved} == {(1, 2, 2, 2, 2, 2, 2, 1)}


def test_categories_of_a_step_sum_to_its_seconds() -> None:
    kinds = set()
    for setup in [*layouts(replace(TIGHT, batch=64), 4)][::7]:
        for recompute in ("none", "alternate"):
            simulator = TrainingSimulator(replace(setup, recompute=recompute))
            found = simulator.breakdown()
            assert math.fsum(found.values()) == pytest.approx(simulator.run().seconds, rel=1e-9)
            assert min(found.values()) > -1e-12
            kinds |= {name for name, seconds in found.items() if seconds}
    assert {"recompute", "tensor_reduce", "gather", "reduce", "bubble", "weight_gradient"} <= kinds


def test_the_ranking_is_that_of_simulating_every_layout_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, steps = list(layouts(TIGHT, 4)), []
    for setup in candidates:
        step = simulate_step(setup)
        assert math.fsum(fullest_device(setup).values()) == step.peak_memory
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
    with refused(DoesNotFit, "devices", 2, rule="3 GB"):
        ranked(layouts(replace(BASE, machine=replace(NODES, memory=3e9)), 2), 5)
    with refused(InvalidRequest, subject="no layout is given"):
        ranked(layouts(replace(BASE, batch=1), 97))
    with refused(UnknownName, "generation", "compild", legal="compiled"):
        one_device(LAYERED, NODES, "compild", 8)
    with refused(Unsupported, "generation", "fp8", rule="float8", legal="generation=compiled"):
        one_device(LAYERED, NODES, "fp8", 8)


def test_half_precision_is_that_of_the_machine() -> None:
    older = replace(NODES, peak={"float16": 125e12})
    assert [one_device(LAYERED, on, "fused", 8).precision for on in (older, NODES)] == ["float16", "bfloat16"]


def test_divisors_ascend() -> None:
    assert [divisors(number) for number in (1, 7, 36)] == [(1,), (1, 7), (1, 2, 3, 4, 6, 9, 12, 18, 36)]
