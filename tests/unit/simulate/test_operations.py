"""The cost model from operations up, against closed forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import Schedule
from suite.schedule import ZBV, ControllableMemory, OneFOneB, Staircase
from suite.simulate.network.machine import Link, Machine
from suite.simulate.operations import states
from suite.simulate.operations.block import BlockKernels
from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds, bandwidth, gather_seconds
from suite.simulate.operations.generation import SoftwareGeneration, constant_sources, generations
from suite.simulate.operations.kernels import DeviceRates, MatrixProduct, tile_share
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.states import memory, parameters, saved_per_token
from suite.simulate.operations.step import StageCosts, TrainingSimulator, simulate_step
from suite.workload import LanguageModel, Transformer
from tests.support.refusals import refused

MACHINE = Machine(
    "lab",
    devices_per_node=8,
    memory=80e9,
    peak={"float8": 2e15, "bfloat16": 1e15, "float16": 1e15, "float32": 1e14},
    memory_bandwidth=2e12,
    within=Link(0.0, 400e9),
    between=Link(0.0, 50e9),
    adapters=8,
    host=Link(0.0, 60e9),
    family="lab",
    compute_units=100,
)
SINGLE = {
    "precision": "tensorfloat32",
    "attention": "unfused",
    "machine": replace(MACHINE, peak={**MACHINE.peak, "tensorfloat32": 5e14}),
}
IDEAL = SoftwareGeneration(
    products={"lab": 1.0},
    attention="flash2",
    flash={"flash2": {"other": (1.0, 1.0)}},
    traffic=1.0,
    start=0.0,
    contention=0.0,
    pause=0.0,
    dispatch=0.0,
    within=1.0,
    between=1.0,
    collective=0.0,
    hop=0.0,
    network_hop=0.0,
    name="ideal",
)
MODEL = LanguageModel(16, 4096, 32, 2048, 1024, kv_heads=8, ffn=8192)


def setup(schedule: Schedule | None = None, **changed: object) -> TrainingSetup:
    ones = {"tensor": 1, "pipeline": 1, "data": 1, "context": 1, "microbatch": 1, "batch": 8}
    return replace(TrainingSetup(MODEL, MACHINE, IDEAL, schedule, **ones), **changed)  # type: ignore[arg-type]


# -- model ---------------------------------------------------------------------------------------------------------


def test_a_gpt_has_the_same_counts_as_a_transformer() -> None:
    gpt = Transformer(4, 64, 4, 32, 100)
    same = LanguageModel.of(gpt)
    assert same.parameters == gpt.parameters
    assert same.flops == sum(layer.flops for layer in gpt.shapes())
    assert same.shapes()[1].parameters == gpt.block().parameters


@pytest.mark.parametrize(("kv_heads", "width"), [(32, 4096), (8, 1024), (1, 128)])
def test_heads_of_keys_and_values_share_their_width(kv_heads: int, width: float) -> None:
    model = replace(MODEL, kv_heads=kv_heads)
    assert model.key_width == width
    assert model.block_weights == 2 * 4096 * 4096 + 2 * 4096 * width + 3 * 4096 * 8192


@pytest.mark.parametrize(
    ("changed", "key", "legal"),
    [
        ({"layers": 0}, "model.shape.layers", "model.shape.layers=1"),
        ({"kv_heads": 5}, "model.shape.kv_heads", "model.shape.kv_heads=4"),
        ({"ffn": 1.5}, "model.shape.ffn", "model.shape.ffn=1"),
    ],
)
def test_an_impossible_model_is_refused(changed: dict[str, int], key: str, legal: str) -> None:
    with refused(InvalidRequest, key, legal=legal):
        replace(MODEL, **changed)


# -- kernels -------------------------------------------------------------------------------------------------------


def test_products_of_a_block_have_the_flops_of_its_weights() -> None:
    for tensor in (1, 2, 8):
        kernels = BlockKernels(setup(tensor=tensor))
        flops = sum(product.flops for product in kernels.products)
        assert flops * tensor == 2 * MODEL.sequence * MODEL.block_weights


def test_a_product_of_whole_waves_reaches_the_full_rate() -> None:
    assert tile_share(256 * 10, 128 * 10, 4096, 1, 100, 0.0) == 1.0
    assert tile_share(256 * 10, 128 * 10, 4096, 1, 100, 4096.0) == 0.5
    # one tile more needs a second wave
    assert tile_share(256 * 101, 128, 4096, 1, 100, 0.0) < 0.9


def test_a_product_of_odd_width_is_slow() -> None:
    even, odd = (tile_share(2048, 128, depth, 1, 100, 0.0) for depth in (128, 108))
    assert odd < even / 2


def test_a_kernel_takes_its_flops_or_its_bytes() -> None:
    rates = DeviceRates(MACHINE, IDEAL)
    large = MatrixProduct(256 * 100, 128 * 100, 4096)
    assert rates.product(large, "bfloat16") == pytest.approx(large.flops / 1e15)
    assert rates.product(large, "float8") == pytest.approx(large.flops / 2e15)
    thin = MatrixProduct(256 * 100, 128, 8)
    assert rates.product(thin, "bfloat16") == pytest.approx(((25600 + 128) * 8 * 2 + 25600 * 128 * 2) / 2e12)


def test_flash_attention_moves_no_scores() -> None:
    flash, unfused = (BlockKernels(setup(attention=kind)) for kind in ("flash2", "unfused"))
    assert flash.attention[0] == pytest.approx(4 * 2048**2 * 4096 * 0.5 / 1e15)
    assert flash.attention[1] == pytest.approx(2.5 * flash.attention[0])
    assert unfused.attention[0] > 10 * flash.attention[0]


def test_a_block_takes_at_least_the_time_of_its_launches() -> None:
    slow = replace(IDEAL, dispatch=1.0, kernels=20)
    block = BlockKernels(setup(generation=slow)).block
    assert block.forward == 20.0
    assert block.backward == pytest.approx(40.0)


# -- communication -------------------------------------------------------------------------------------------------


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


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    group = SpacedRanks(8)
    assert gather_seconds(8e9, group, MACHINE, IDEAL) == pytest.approx(7 / 8 * 8e9 / 400e9)
    assert all_reduce_seconds(8e9, group, MACHINE, IDEAL) == 2 * gather_seconds(8e9, group, MACHINE, IDEAL)
    assert all_reduce_seconds(8e9, SpacedRanks(1), MACHINE, IDEAL) == 0.0


def test_tensor_parallelism_waits_for_two_sums_per_pass() -> None:
    kernels = BlockKernels(setup(tensor=8))
    size = 2048 * 4096 * 2
    assert kernels.tensor_parallel[0] == pytest.approx(2 * 2 * 7 / 8 * size / 400e9)
    hidden = BlockKernels(setup(tensor=8, generation=replace(IDEAL, tensor_overlap=(1.0, 1.0))))
    assert 0 < hidden.tensor_parallel[0] < kernels.tensor_parallel[0]


def test_context_parallelism_divides_a_sequence() -> None:
    whole, half = BlockKernels(setup()), BlockKernels(setup(context=2))
    assert half.attention[0] == pytest.approx(whole.attention[0] / 2)
    assert half.setup.tokens == whole.setup.tokens / 2
    assert half.context_parallel[0] > 0 == whole.context_parallel[0]


# -- steps ---------------------------------------------------------------------------------------------------------


def test_microbatches_of_one_device_follow_each_other() -> None:
    alone = setup(batch=8)
    costs = StageCosts(alone)
    passes = costs.passes[0]
    expected = 8 * (passes.forward + passes.backward) + costs.step(0)
    assert simulate_step(alone).seconds == pytest.approx(expected)


@pytest.mark.parametrize("microbatches", [4, 8, 32, 100])
def test_a_pipeline_of_equal_stages_is_idle_for_all_stages_but_one(microbatches: int) -> None:
    """1F1B takes (m + p - 1) passes of the slowest stage. Embedding and head are small here."""
    piped = setup(OneFOneB(), pipeline=4, batch=microbatches)
    passes = StageCosts(piped).passes
    slowest, least = (f(p.forward + p.backward for p in passes) for f in (max, min))
    seconds = simulate_step(piped).seconds - StageCosts(piped).update(0)[0].step
    assert (microbatches + 3) * least * 0.99 <= seconds <= (microbatches + 3) * slowest * 1.05


@pytest.mark.parametrize(
    "schedule", [OneFOneB(), Staircase(2, lead=2), Staircase(lead=2, split=True), ZBV()], ids=lambda s: str(s)[:24]
)
def test_a_long_pipeline_is_extrapolated_from_its_steady_state(schedule: Schedule) -> None:
    long = TrainingSimulator(setup(schedule, pipeline=4, batch=70))
    assert long._pipeline() == pytest.approx(long.simulation(70).makespan, rel=3e-3)


def test_interleaving_and_zero_bubble_shorten_a_step() -> None:
    plain, interleaved, zero = (
        simulate_step(setup(s, pipeline=4, batch=8)).seconds
        for s in (OneFOneB(), Staircase(2, lead=2), Staircase(lead=2, split=True))
    )
    assert zero < interleaved < plain


def test_recomputation_repeats_a_forward_pass() -> None:
    none, full, selective, alternate = (
        BlockKernels(setup(recompute=kind)).block for kind in ("none", "full", "selective", "alternate")
    )
    assert full.backward == pytest.approx(none.backward + none.forward)
    assert alternate.backward == pytest.approx(none.backward + none.forward / 2)
    assert none.backward < selective.backward < alternate.backward


def test_gathering_weights_hides_behind_passes() -> None:
    local, sharded = setup(data=8), setup(data=8, sharding="parameters")
    assert simulate_step(sharded).seconds < 1.1 * simulate_step(local).seconds
    slow = replace(MACHINE, within=Link(0.0, 1e9))
    assert simulate_step(replace(sharded, machine=slow)).seconds > 3 * simulate_step(sharded).seconds


def test_a_hidden_reduction_leaves_its_last_bucket() -> None:
    plain = StageCosts(setup(data=8))
    hidden = StageCosts(setup(data=8, generation=replace(IDEAL, reduction_overlap=True)))
    passes = hidden.passes[0].backward
    assert plain.reduction(0) / 16 <= hidden.reduction(0) < plain.reduction(0) - passes / 4


def test_an_offloaded_step_crosses_the_host_link() -> None:
    entries = parameters(setup(), 0)
    assert StageCosts(setup(offload=True)).step(0) == pytest.approx(2 * 12 * entries / 60e9)


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [("none", 2, 4, 12), ("optimizer", 2, 4, 12 / 8), ("gradients", 2, 4 / 8, 12 / 8)],
)
def test_sharding_divides_states(sharding: str, weights: float, gradients: float, optimizer: float) -> None:
    kinds = memory(setup(data=8, sharding=sharding), 0, 1)
    found = [kinds[name] / MODEL.parameters for name in ("weights", "gradients", "optimizer states")]
    assert found == pytest.approx([weights, gradients, optimizer])


def test_saved_bytes_follow_korthikanti() -> None:
    """A block with dropout saves s h (34 + 5 a s / h) bytes (Korthikanti et al. 2022, Equation 1)."""
    gpt = LanguageModel(1, 1024, 16, 512, 1000, kv_heads=16, ffn=4096, gated=False)
    drops = replace(IDEAL, dropout=True)
    saved = saved_per_token(setup(model=gpt, attention="fused_softmax", generation=drops))
    assert saved == pytest.approx(1024 * (34 + 5 * 16 * 512 / 1024), rel=0.06)
    split = saved_per_token(setup(model=gpt, attention="fused_softmax", generation=drops, tensor=4))
    spread = saved_per_token(
        setup(model=gpt, attention="fused_softmax", generation=drops, tensor=4, sequence_parallel=True)
    )
    assert spread == pytest.approx(saved / 4)
    assert saved / 4 < split < saved


def test_single_precision_has_entries_of_four_bytes_and_no_copy_of_the_weights() -> None:
    single = setup(**SINGLE)
    kinds = memory(single, 0, 1)
    found = [kinds[name] / MODEL.parameters for name in ("weights", "gradients", "optimizer states")]
    assert found == pytest.approx([4, 4, 8])
    assert BlockKernels(single).activation == 2 * BlockKernels(setup()).activation
    assert saved_per_token(single) > saved_per_token(setup(attention="fused_softmax"))
    with refused(InvalidRequest, "attention", legal="attention=unfused"):
        replace(single, attention="flash2")


def test_a_told_dropout_replaces_that_of_the_generation() -> None:
    gpt = LanguageModel(1, 1024, 16, 512, 1000, kv_heads=16, ffn=4096, gated=False)
    drops = setup(model=gpt, attention="unfused", generation=replace(IDEAL, dropout=True))
    without = replace(drops, dropout=False)
    assert drops.drops
    assert not without.drops
    assert saved_per_token(drops) - saved_per_token(without) == pytest.approx(2 * 1024 + 3 * 512 * 16)
    assert BlockKernels(drops).attention[0] > BlockKernels(without).attention[0]


def test_v_half_holds_half_of_the_activations_of_1f1b() -> None:
    plain, half = (
        simulate_step(setup(s, pipeline=8, batch=32)).memory["activations"]
        for s in (OneFOneB(), ControllableMemory("half"))
    )
    assert 0.4 < half / plain < 0.7


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"precision": "float7"}, "precision"),
        ({"recompute": "ful"}, "recompute"),
        ({"attention": "flash9"}, "attention"),
        ({"sharding": "zero9"}, "sharding"),
        ({"precision": "float4"}, "peak of lab for type"),
    ],
)
def test_an_unknown_setting_is_refused(changed: dict[str, str], key: str) -> None:
    with refused(UnknownName, key):
        setup(**changed)


@pytest.mark.parametrize(("changed", "key"), [({"data": 0}, "data"), ({"pipeline": 2}, "pipeline")])
def test_an_impossible_setup_is_refused(changed: dict[str, int], key: str) -> None:
    with refused(InvalidRequest, key):
        setup(**changed)


def test_more_stages_than_layers_are_refused() -> None:
    with refused(InvalidRequest, subject="stages for 16 blocks"):
        setup(OneFOneB(), pipeline=19)


def test_every_generation_has_shares_for_every_flash_kernel() -> None:
    assert set(generations()) == {"unfused", "fused", "megatron", "flash", "compiled", "fp8", "fp4"}
    for generation in generations().values():
        assert {"flash1", "flash2", "flash3"} <= set(generation.flash)
        assert set(generation.flash_version.values()) <= set(generation.flash)


def test_flash_attention_without_a_version_means_another_kernel_on_blackwell() -> None:
    assert generations()["flash"].flash_kernel("h100") == "flash1"
    assert generations()["fp8"].flash_kernel("h100") == "flash2"
    assert generations()["fp8"].flash_kernel("blackwell") == "flash3"


@pytest.mark.parametrize("share", [0.0, 1.2, float("nan")])
def test_a_sustained_share_outside_its_bounds_is_refused(share: float) -> None:
    with refused(InvalidRequest, "machine.sustained", str(share), legal="machine.sustained=0.8"):
        replace(MACHINE, sustained=share)


def test_a_share_outside_its_bounds_is_refused() -> None:
    with refused(InvalidRequest, "generation.traffic"):
        replace(IDEAL, traffic=0.0)
    with refused(InvalidRequest, "generation.products.lab"):
        replace(IDEAL, products={"lab": 1.5})


SWITCHES = ("attention", "flash_version", "name", "dropout", "fused_elementwise", "fused_rotary", "reduction_overlap")
SWITCHES += ("gathered_logits", "blocking_messages")


def numbers(value: object) -> Iterator[float]:
    """Numbers inside a constant's value."""
    if isinstance(value, Mapping):
        yield from (number for each in value.values() for number in numbers(each))
    elif isinstance(value, tuple):
        yield from value
    else:
        assert isinstance(value, int | float)
        yield float(value)


FORMATS = ("HALF", "FULL")  # bytes of a number, which no source gives


def constant_values() -> dict[str, list[float]]:
    """Values of each constant of a generation, in all generations, and of each constant of the memory model."""
    names = [field.name for field in fields(SoftwareGeneration) if field.name not in SWITCHES]
    found = {name: [n for each in generations().values() for n in numbers(getattr(each, name))] for name in names}
    memory_model = {name: value for name, value in vars(states).items() if name.isupper() and name not in FORMATS}
    found |= {
        f"memory.{name.lower()}": [float(value)]
        for name, value in memory_model.items()
        if isinstance(value, int | float)
    }
    return found


def unsourced(values: Mapping[str, Sequence[float]]) -> list[str]:
    """Constants without a source or outside their range, and sources of no constant."""
    sources = {each.constant: each for each in constant_sources()}
    bad = sorted(values.keys() ^ sources.keys())
    for name in values.keys() & sources.keys():
        low, high = sources[name].range
        if not sources[name].source or not all(low <= value <= high for value in values[name]):
            bad.append(name)
    return bad


def test_every_constant_has_a_source_and_lies_in_its_range() -> None:
    values = constant_values()
    assert {"memory.context", "memory.in_flight", "pause"} <= values.keys()
    assert unsourced(values) == []


def test_constant_without_a_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "GUESSED", 1.3, raising=False)
    assert unsourced(constant_values()) == ["memory.guessed"]
    monkeypatch.delattr(states, "GUESSED")
    monkeypatch.setattr(states, "CONTEXT", 9e9)
    assert unsourced(constant_values()) == ["memory.context"]
