"""Simulated plans: placement, and memory as printed in the papers, by blocks and by layers.

Whether a plan fits decides which plans exist at all, so that a byte per parameter more moves a published figure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from baselines.gpipe import GPipe
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.memory import offloaded, pruned, resident, sparse
from suite.memory.checkpointing import checkpoint_interval
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.block_model import MOMENTS, SimulationPlan
from suite.simulate.layer_model import LayerPlan
from suite.simulate.operations.generation import generations
from suite.simulate.operations.states import PIPELINED, memory
from suite.simulate.operations.step import simulate_step
from suite.simulate.search import run
from suite.workload import Transformer
from tests.support.drawn import cells
from tests.support.modelled import TINY, conf, shape, system
from tests.support.refusals import refused


def plan(
    inter: int = 1, *, data: int = 1, tensor: int = 1, batch: int = 8, microbatch: int = 1, **more: Any
) -> SimulationPlan:
    """Of TINY, unless told otherwise: 4 blocks of 872 parameters, an embedding of 160, a head of 16 + 128 tied."""
    usual: dict[str, Any] = {"shape": TINY, "system": system(tensor=tensor > 1)}
    grid = Grid(data=data, inter=inter, tensor=tensor)
    return SimulationPlan(**{**usual, "grid": grid, "batch": batch, "microbatch": microbatch, **more})


APART = replace(TINY, tied=False)
HEAVY = Transformer(layers=6, hidden=8, heads=2, sequence=4, vocabulary=312)  # a head of three blocks' flops
WIDE = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=1000)  # its logits outweigh its blocks
THIRTEEN = shape("gpt3_13b")


# -- stages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "blocks"),
    [
        (plan(1), [4]),
        (plan(2), [2, 2]),
        (plan(3), [2, 1, 1]),
        (plan(4), [1, 1, 1, 1]),
        (plan(3, shape=HEAVY, split="cost"), [3, 3, 0]),
        (plan(3, shape=HEAVY), [2, 2, 2]),
        (plan(32, shape=THIRTEEN, split="share", batch=32), [1.25] * 32),  # SAMO: 40 blocks on 32 stages
    ],
)
def test_blocks_of_stages_by_hand(one: SimulationPlan, blocks: list[float]) -> None:
    assert [*one.blocks] == blocks


@pytest.mark.parametrize(
    ("one", "entries"),
    [
        # a head on another stage than the embedding holds a copy of the 128 that they share
        (plan(1), [TINY.parameters]),
        (plan(2), [160 + 2 * 872, 2 * 872 + 16 + 128]),
        (plan(2, shape=APART), [160 + 2 * 872, 2 * 872 + 16 + 128]),
        (plan(1, shape=APART), [TINY.parameters + 128]),
        (plan(3), [160 + 2 * 872, 872, 872 + 144]),
        (plan(2, tensor=2), [1904 // 2, 1888 // 2]),
        (plan(3, tensor=2, split="share"), [662, 582, 654]),  # half of 1162 2/3, to whole numbers
    ],
)
def test_entries_by_hand(one: SimulationPlan, entries: list[int]) -> None:
    assert TINY.parameters == 160 + 4 * 872 + 16
    assert [one.entries(stage) for stage in range(len(entries))] == entries


OFFLOADED = system(layout=partial(offloaded, bucket=100))


@pytest.mark.parametrize(
    ("one", "stage", "size"),
    [
        (plan(2), 0, 20 * 1904),
        (plan(2, system=OFFLOADED), 1, 4 * 1888 + 16 * 100),
        (plan(2, system=system(layout=partial(pruned, sparsity=0.5))), 0, 2 * 1904 + 24 * 952),
        # ZeRO: half-precision weights and gradients stay whole: 4 bytes per parameter, and 16 by the replicas
        (plan(2, data=4, system=system(zero_stage=1)), 0, 4 * 1904 + 16 * 476),
        (plan(2, data=1, system=system(zero_stage=1)), 0, 20 * 1904),
        (plan(2, data=4), 0, 20 * 1904),
    ],
)
def test_bytes_of_states_by_hand(one: SimulationPlan, stage: int, size: int) -> None:
    assert one.layout(stage).bytes() == size


# -- activations -------------------------------------------------------------------------------------------------------


def test_the_checkpoint_interval_is_axonns_rule() -> None:
    """Also where two factors are equally close to the root: 144 layers on 9 stages."""
    for layers in (1, 6, 16, 36, 48, 144):
        model = Transformer(layers=layers, hidden=8, heads=2, sequence=4, vocabulary=16)
        for inter in (n for n in range(1, layers + 1) if layers % n == 0):
            divided = plan(inter, shape=model, batch=1)
            intervals = {divided.checkpoint_interval(stage) for stage in {0, inter - 1}}
            assert intervals == {checkpoint_interval(layers, inter)}, (layers, inter)
    model = Transformer(layers=10, hidden=8, heads=2, sequence=4, vocabulary=16)
    assert [plan(3, shape=model).checkpoint_interval(stage) for stage in range(3)] == [4, 3, 3]  # blocks; root 3.16
    assert plan(4, shape=model, split="share").checkpoint_interval(0) == 2  # 2.5 blocks
    for kind, interval, recomputes in (("interval", 2, 1), ("layer", 1, 1), ("none", 2, 0)):
        one = plan(2, system=system(activation_checkpointing=kind))
        assert (one.checkpoint_interval(0), one.recomputes) == (interval, recomputes)


# of a block of TINY and one sequence: s h = 32, scores 2 x 4 x 4 = 32
KEPT, BOUNDARY, LOGITS, PROBABILITIES = 34 * 32 + 5 * 32, 2 * 32, 2 * 4 * 16, 4 * 4 * 16
LAYER, NONE = (system(activation_checkpointing=kind) for kind in ("layer", "none"))
GPIPE = system(schedule=GPipe())
SAMO, KERNELS = system(layout=partial(pruned, sparsity=0.75)), system(layout=partial(sparse, sparsity=0.75))
HALVES = 32 * (10 + 24 / 2) + 5 * 32 / 2


@pytest.mark.parametrize(
    ("one", "stage", "activations", "working", "in_flight", "waiting"),
    [
        # two blocks, two sequences, a checkpoint after both blocks; on the last stage the other microbatch has arrived
        (plan(2, microbatch=2), 0, 2 * BOUNDARY, 2 * (2 * KEPT + BOUNDARY), 2, 0),
        (plan(2, microbatch=2), 1, 2 * (BOUNDARY + PROBABILITIES), ..., 1, 2 * BOUNDARY),
        (plan(2, system=LAYER), 0, 2 * BOUNDARY, KEPT + BOUNDARY, 2, 0),
        (plan(2, system=NONE), 0, 2 * KEPT, 0, 2, 0),
        (plan(2, system=NONE), 1, 2 * KEPT + PROBABILITIES, LOGITS, 1, BOUNDARY),
        (plan(2, shape=WIDE), 0, BOUNDARY, 2 * KEPT + BOUNDARY, 2, 0),
        # log-probabilities stay for each microbatch in flight, four with GPipe; half-precision logits are a transient
        (plan(2, shape=WIDE, batch=4, system=system(schedule=OneFOneB())), 1, 16064, 8000, 1, BOUNDARY),
        (plan(2, shape=WIDE, batch=4, system=GPIPE), 1, BOUNDARY + 4 * 4 * 1000, 2 * 4 * 1000, 4, 0),
        (plan(2, system=GPIPE), 1, BOUNDARY + PROBABILITIES, 2 * KEPT + BOUNDARY - PROBABILITIES, 8, 0),
        (plan(2, tensor=2), 0, BOUNDARY, 2 * HALVES + BOUNDARY, 2, 0),
        # the buffers of an update are kept from batch to batch
        (plan(2, system=OFFLOADED), 0, BOUNDARY, 2 * KEPT + BOUNDARY, 2, 16 * 100),
        # a compressed gradient is dense until its layer is done; a step waits with the half-precision copy
        (plan(2, system=SAMO, microbatch=2), 0, ..., 2 * (2 * KEPT + BOUNDARY) + 2 * 872, 2, 2 * 476),
        (plan(2, system=KERNELS), 0, BOUNDARY, 2 * KEPT + BOUNDARY, 2, 0),
    ],
)
def test_budgets_by_hand(
    one: SimulationPlan, stage: int, activations: Any, working: Any, in_flight: int, waiting: int
) -> None:
    budget = one.budget(stage)
    assert (budget.in_flight, budget.waiting) == (in_flight, waiting)
    assert activations is ... or budget.activations == activations
    assert working is ... or budget.working == working


def test_peak_and_total_of_a_plan_by_hand() -> None:
    pairs = plan(2, microbatch=2)
    first, last = pairs.budget(0), pairs.budget(1)
    assert pairs.peak == first.peak == 20 * 1904 + 2 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY) == 43456
    assert last.peak == 20 * 1888 + 1 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY) + 2 * BOUNDARY
    assert pairs.total() == first.peak + last.peak == plan(2, microbatch=2, data=2).total() / 2
    assert first.by_kind()["activations"] == 2 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY)
    wide = plan(2, shape=WIDE)  # here the last stage is the fullest
    assert wide.peak == wide.budget(1).peak > wide.budget(0).peak
    split = plan(2, tensor=2)
    assert split.total() == 2 * (split.budget(0).peak + split.budget(1).peak)
    # microbatches stay as large as they were, unless told otherwise
    assert pairs.on(Grid(data=2, inter=4)) == plan(4, data=2, microbatch=2)
    assert pairs.on(Grid(), 1) == plan(1)


@pytest.mark.parametrize(("sliced", "parts"), [("none", 1), ("forward", 2), ("both", 2)])
def test_messages_wait_as_they_are_sent(sliced: str, parts: int) -> None:
    """The ranks of a split layer receive a slice each where their system slices activations."""
    in_order = plan(4, tensor=2, microbatch=2, system=system(tensor=True, scatter_messages=sliced, schedule=OneFOneB()))
    assert in_order.message == 2 * BOUNDARY // parts
    assert [in_order.budget(stage).waiting for stage in range(4)] == [0, *[in_order.message] * 3]
    driven = plan(4, microbatch=2)  # three more wait for a message-driven last stage
    assert [driven.budget(stage).waiting for stage in range(4)] == [0, 0, 0, 3 * driven.message]


# -- both accounts of a GPT's memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "schedule", "grid"),
    cells(
        [TINY, APART, Transformer(layers=6, hidden=16, heads=4, sequence=8, vocabulary=100)],
        [OneFOneB(), MessageDriven(), GPipe()],
        [Grid(), Grid(inter=2), Grid(inter=4), Grid(data=2, inter=3)],
        n=6,
    ),
)
def test_accounts_by_blocks_and_by_layers_agree(shape: Transformer, schedule: Any, grid: Grid) -> None:
    """All but the saved bytes of one microbatch are equal.

    Blocks count the papers' kernels (Korthikanti et al. 2022), and layers count PyTorch's kernels. Per sequence of s
    tokens, a hidden width of h, a heads and v words:

        block             34 s h + 5 a s^2: scores and dropout masks    32 s h + 2 (4 + a) s: attention is fused
        end of a stage    nothing                                      2 s h: the output, until its gradient
        norm and head     4 s v of log-probabilities                   and 4 s h + 4 s of the norm

    On a single stage a tied head shares the embedding's matrix in blocks, as Megatron does. Layers count it twice, as
    the engine allocates it (law 4).
    """
    described, batch = system(schedule=schedule, activation_checkpointing="none"), 16 * grid.data
    blocks = SimulationPlan(shape, described, grid, batch, 2)
    layers = LayerPlan(shape, described, grid, batch, 2, resident, MOMENTS, half="float16", split="even")
    s, h, a = shape.sequence, shape.hidden, shape.heads
    in_a_block = (34 * s * h + 5 * a * s * s) - (32 * s * h + 2 * (4 + a) * s)
    for stage in range(grid.inter):
        one, other = blocks.budget(stage), layers.budget(stage)
        twice = shape.head().tied if grid.inter == 1 else 0
        assert blocks.entries(stage) + twice == layers.entries(stage)
        assert twice or one.layout == other.layout
        same = {"layout": one.layout, "activations": one.activations, "held": one.held, "working": one.working}
        assert one == replace(other, **same)
        more = -(4 * s * h + 4 * s) if stage == grid.inter - 1 else -2 * s * h
        assert one.activations - other.activations == 2 * (blocks.blocks[stage] * in_a_block + more)


# -- refusals and printed memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "key", "legal"),
    [
        ({"batch": 10, "data": 4}, "", "a batch of 8"),
        ({"batch": 3, "microbatch": 4}, "", "a batch of 4"),
        ({"batch": 0}, "", "a batch of 1"),
        ({"microbatch": 0}, "microbatch", "1"),
        ({"inter": 5}, "", "grid.inter=4"),
        ({"inter": 5, "split": "share"}, "", ""),
        ({"tensor": 4}, "", ""),
        ({"split": "evenly"}, "split", "even"),
        ({"tensor": 2, "system": system()}, "grid.tensor", "grid.tensor=1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(arguments: dict[str, Any], key: str, legal: str) -> None:
    kinds: dict[str, type[InvalidRequest]] = {"split": UnknownName, "grid.tensor": Unsupported}
    with refused(kinds.get(key, InvalidRequest), key, legal=legal):
        plan(**arguments)


@pytest.mark.parametrize(
    ("key", "value", "legal"),
    [
        ("activation_checkpointing", "layers", "layer"),
        ("scatter_messages", "forwards", "forward"),
        ("zero_stage", 2, "zero_stage=1"),
        *(("modelled.bucket_numel", -1, "0"), ("modelled.buckets_per_reduction", -4, "")),
        ("modelled.allreduces_per_update", -0.5, ""),
    ],
)
def test_a_system_that_cannot_be_is_refused(key: str, value: object, legal: str) -> None:
    with refused(InvalidRequest, key, str(value), legal=legal):
        system(**{key.removeprefix("modelled."): value})


# -- plans and setups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "grid"),
    cells(sorted(generations()), [Grid(inter=4), Grid(data=2, inter=2), Grid(inter=2, tensor=4)], n=4),
)
def test_a_plan_is_a_setup(generation: str, grid: Grid) -> None:
    """Both take the same time, but for reductions over shared adapters, and hold the same activations. The setup has
    reserved bytes, of which there are more by PIPELINED."""
    described = system(schedule=OneFOneB(), activation_checkpointing="none", tensor=True)
    planned = SimulationPlan(shape("gpt3_2_7b"), described, grid, 32 * grid.data, 1, generation=generation)
    on, software = conf("machine", "h100"), replace(conf("efficiency", "usual"), generation=generation)
    setup = planned.setup(on, software.software(on.family, "small", sparse=False))
    assert run(planned, on, software).makespan == pytest.approx(simulate_step(setup).seconds, rel=0.05)
    assert memory(setup, 0, grid.inter)["activations"] == pytest.approx(
        PIPELINED * planned.budget(0).by_kind()["activations"]
    )
