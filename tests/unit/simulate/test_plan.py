"""Simulated plans: placement, and memory as printed in the papers.

Whether a plan fits decides which plans exist at all, so that a byte per parameter more moves a published figure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from baselines.gpipe import GPipe
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.op import FlushInterval
from suite.memory import offloaded, pruned, sparse
from suite.memory.checkpointing import checkpoint_interval
from suite.schedule import OneFOneB
from suite.simulate.block_model import SimulationPlan, StageBlocks, SystemModel
from suite.workload import Transformer
from suite.workload.split import divide
from tests.support.modelled import TINY, names, shape, simulated, system, systems
from tests.support.refusals import fault, refused


def plan(
    inter: int = 1, *, data: int = 1, tensor: int = 1, batch: int = 8, microbatch: int = 1, **more: Any
) -> SimulationPlan:
    """Of TINY, unless told otherwise: 4 blocks of 872 parameters, an embedding of 160, a head of 16 + 128 tied."""
    usual: dict[str, Any] = {"shape": TINY, "system": system(tensor=tensor > 1)}
    grid = Grid(data=data, inter=inter, tensor=tensor)
    return SimulationPlan(**{**usual, "grid": grid, "batch": batch, "microbatch": microbatch, **more})


# -- what a stage holds ------------------------------------------------------------------------------------------------


def parts_held(found: SimulationPlan) -> list[tuple[float, bool, bool]]:
    return [(one.blocks, one.embedding, one.head) for one in found.stages]


def test_even_splits_count_blocks() -> None:
    assert parts_held(plan(1)) == [(4, True, True)]
    assert parts_held(plan(2)) == [(2, True, False), (2, False, True)]
    assert parts_held(plan(3)) == [(2, True, False), (1, False, False), (1, False, True)]
    assert parts_held(plan(4)) == [(1, True, False), (1, False, False), (1, False, False), (1, False, True)]
    assert plan(2).stages == (StageBlocks(2, True, False), StageBlocks(2, False, True))


def test_splits_by_cost_weigh_the_head() -> None:
    """A head of three blocks' flops: 24 s h^2 + 4 s^2 h = 6656 a block, 2 s h v = 64 v for the head."""
    heavy = Transformer(layers=6, hidden=8, heads=2, sequence=4, vocabulary=312)
    assert heavy.head().flops == 3 * heavy.block().flops
    assert parts_held(plan(3, shape=heavy, split="cost")) == [(3, True, False), (3, False, False), (0, False, True)]
    assert parts_held(plan(3, shape=heavy)) == [(2, True, False), (2, False, False), (2, False, True)]


@pytest.mark.parametrize("split", ["even", "cost"])
@pytest.mark.parametrize("inter", [1, 2, 3, 5, 7])
def test_a_split_is_the_engines(split: str, inter: int) -> None:
    model = Transformer(layers=7, hidden=8, heads=2, sequence=4, vocabulary=64)
    divided = plan(inter, shape=model, split=split)
    ranges = divide(model, inter, split)
    assert [one.blocks + one.embedding + one.head for one in divided.stages] == [len(part) for part in ranges]
    assert sum(one.blocks for one in divided.stages) == 7


def test_equal_shares_of_the_blocks() -> None:
    """13B in SAMO: 40 blocks on 32 stages."""
    shares = plan(32, shape=shape("gpt3_13b"), split="share", batch=32)
    assert parts_held(shares)[:2] == [(1.25, True, False), (1.25, False, False)]
    assert parts_held(shares)[-1] == (1.25, False, True)
    assert shares.entries(1) == 1.25 * shape("gpt3_13b").block().parameters


def test_entries_by_hand() -> None:
    """A head on another stage than the embedding holds a copy of the 128 that they share."""
    assert plan(1).entries(0) == 160 + 4 * 872 + 16 == TINY.parameters
    assert [plan(2).entries(stage) for stage in range(2)] == [160 + 2 * 872, 2 * 872 + 16 + 128]
    apart = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=16, tied=False)
    assert [plan(2, shape=apart).entries(stage) for stage in range(2)] == [160 + 2 * 872, 2 * 872 + 16 + 128]
    assert plan(1, shape=apart).entries(0) == TINY.parameters + 128
    assert [plan(3).entries(stage) for stage in range(3)] == [160 + 2 * 872, 872, 872 + 144]


def test_a_split_layer_leaves_each_rank_its_part() -> None:
    assert [plan(2, tensor=2).entries(stage) for stage in range(2)] == [1904 // 2, 1888 // 2]
    assert plan(3, tensor=2, split="share").entries(1) == 582  # half of 1162 2/3, to whole numbers


@pytest.mark.parametrize(
    "name", [name for name in names("model") if name.startswith(("gpt3_", "gpt2_", "transformer_"))]
)
def test_all_stages_hold_the_model(name: str) -> None:
    model = shape(name)
    for inter in (1, 2, 4):
        divided = plan(inter, shape=model)
        copies = model.head().tied if inter > 1 else 0
        assert sum(map(divided.entries, range(inter))) == model.parameters + copies


# -- model states ------------------------------------------------------------------------------------------------------


def test_layouts_are_the_systems() -> None:
    assert plan(2).layout(0).bytes() == 20 * 1904
    offload = system(layout=partial(offloaded, bucket=100))
    assert plan(2, system=offload).layout(1).bytes() == 4 * 1888 + 16 * 100
    half = plan(2, system=system(layout=partial(pruned, sparsity=0.5)))
    assert half.layout(0).bytes() == 2 * 1904 + 24 * 952


def test_zero_shares_the_optimizer_out_over_replicas() -> None:
    """Half-precision weights and gradients stay whole: 4 bytes per parameter, and 16 by the replicas."""
    zero = system(zero_stage=1)
    assert plan(2, data=4, system=zero).layout(0).bytes() == 4 * 1904 + 16 * 476
    assert plan(2, data=1, system=zero).layout(0) == plan(2).layout(0)
    assert plan(2, data=4).layout(0).bytes() == 20 * 1904


# -- activations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 6, 16, 36, 48, 96, 144])
def test_the_interval_is_axonns_rule(layers: int) -> None:
    """Also where two factors are equally close to the root: 144 layers on 9 stages."""
    model = Transformer(layers=layers, hidden=8, heads=2, sequence=4, vocabulary=16)
    for inter in (n for n in range(1, layers + 1) if layers % n == 0):
        divided = plan(inter, shape=model, batch=1)
        assert {divided.checkpoint_interval(stage) for stage in range(inter)} == {checkpoint_interval(layers, inter)}


def test_the_interval_of_unequal_stages_and_of_other_systems() -> None:
    model = Transformer(layers=10, hidden=8, heads=2, sequence=4, vocabulary=16)
    assert [plan(3, shape=model).checkpoint_interval(stage) for stage in range(3)] == [
        4,
        3,
        3,
    ]  # 4, 3, 3 blocks; root 3.16
    assert [plan(4, shape=model, split="share").checkpoint_interval(stage) for stage in (0, 3)] == [2, 2]  # 2.5 blocks
    assert [plan(2, system=system(activation_checkpointing=c)).checkpoint_interval(0) for c in ("layer", "none")] == [
        1,
        2,
    ]
    assert [plan(2, system=system(activation_checkpointing=c)).recomputes for c in ("interval", "layer", "none")] == [
        1,
        1,
        0,
    ]


# of a block of TINY and one sequence: s h = 32, scores 2 x 4 x 4 = 32
KEPT, BOUNDARY, LOGITS, PROBABILITIES = 34 * 32 + 5 * 32, 2 * 32, 2 * 4 * 16, 4 * 4 * 16


def test_a_budget_by_hand() -> None:
    """Two stages of two blocks, two microbatches of two sequences in flight, a checkpoint after both blocks."""
    pairs = plan(2, microbatch=2)
    assert pairs.microbatches == 4
    first, last = pairs.budget(0), pairs.budget(1)
    assert (first.activations, first.in_flight, first.waiting) == (2 * BOUNDARY, 2, 0)
    assert first.working == 2 * (2 * KEPT + BOUNDARY)
    assert first.peak == 20 * 1904 + 2 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY) == 43456
    assert (last.in_flight, last.waiting) == (1, 2 * BOUNDARY)  # the other microbatch has arrived
    assert last.peak == 20 * 1888 + 1 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY) + 2 * BOUNDARY
    assert pairs.peak == first.peak
    assert pairs.total() == first.peak + last.peak
    assert plan(2, microbatch=2, data=2).total() == 2 * pairs.total()
    assert pairs.budget(0).by_kind()["activations"] == 2 * 2 * BOUNDARY + 2 * (2 * KEPT + BOUNDARY)


def test_budgets_of_other_checkpoints() -> None:
    layer = plan(2, system=system(activation_checkpointing="layer")).budget(0)
    assert (layer.activations, layer.working) == (2 * BOUNDARY, KEPT + BOUNDARY)
    none = plan(2, system=system(activation_checkpointing="none")).budget(0)
    assert (none.activations, none.working) == (2 * KEPT, 0)
    head = plan(2, system=system(activation_checkpointing="none")).budget(1)
    assert (head.activations, head.working) == (2 * KEPT + PROBABILITIES, LOGITS)
    assert plan(2, shape=WIDE).budget(0).working == 2 * KEPT + BOUNDARY


WIDE = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=1000)  # its logits outweigh its blocks


def test_log_probabilities_stay_for_each_microbatch_in_flight() -> None:
    """Four with GPipe, one else. The half-precision logits are a transient; the blocks run again without either."""
    one, four = (plan(2, shape=WIDE, batch=4, system=system(schedule=s)).budget(1) for s in (OneFOneB(), GPipe()))
    assert one.activations == four.activations == BOUNDARY + 4 * 4 * 1000
    assert one.working == four.working == 2 * 4 * 1000
    assert (one.in_flight, four.in_flight) == (1, 4)
    assert four.peak - one.peak == 3 * (BOUNDARY + 4 * 4 * 1000) - BOUNDARY  # and no message waits
    narrow = plan(2, system=system(schedule=GPipe())).budget(1)
    assert (narrow.activations, narrow.working) == (BOUNDARY + PROBABILITIES, 2 * KEPT + BOUNDARY - PROBABILITIES)


def test_a_split_layer_keeps_its_part() -> None:
    budget = plan(2, tensor=2).budget(0)
    saved = 32 * (10 + 24 / 2) + 5 * 32 / 2
    assert (budget.activations, budget.working) == (BOUNDARY, 2 * saved + BOUNDARY)
    assert plan(2, tensor=2).total() == 2 * (plan(2, tensor=2).budget(0).peak + plan(2, tensor=2).budget(1).peak)


@pytest.mark.parametrize(("sliced", "parts"), [("none", 1), ("forward", 2), ("both", 2)])
def test_messages_wait_as_they_are_sent(sliced: str, parts: int) -> None:
    """The ranks of a split layer receive a slice each where their system slices activations."""
    in_order = plan(4, tensor=2, microbatch=2, system=system(tensor=True, scatter_messages=sliced, schedule=OneFOneB()))
    assert in_order.message == 2 * BOUNDARY // parts
    assert [in_order.budget(stage).waiting for stage in range(4)] == [0, *[in_order.message] * 3]
    driven = plan(4, microbatch=2)  # three more wait for a message-driven last stage
    assert [driven.budget(stage).waiting for stage in range(4)] == [0, 0, 0, 3 * driven.message]


def test_what_an_update_uses_is_kept_from_batch_to_batch() -> None:
    budget = plan(2, system=system(layout=partial(offloaded, bucket=100))).budget(0)
    assert budget.waiting == 16 * 100
    assert budget.peak == 4 * 1904 + 16 * 100 + 2 * BOUNDARY + 2 * KEPT + BOUNDARY


def test_a_compressed_gradient_is_dense_until_its_layer_is_done() -> None:
    """However many sequences a microbatch has."""
    samo = plan(2, system=system(layout=partial(pruned, sparsity=0.75)), microbatch=2).budget(0)
    assert samo.working == 2 * (2 * KEPT + BOUNDARY) + 2 * 872
    assert samo.waiting == 2 * 476  # of the step: the compressed half-precision copy
    kernels = plan(2, system=system(layout=partial(sparse, sparsity=0.75))).budget(0)
    assert (kernels.working, kernels.waiting) == (2 * KEPT + BOUNDARY, 0)


@pytest.mark.parametrize("schedule", [GPipe(), OneFOneB()])
def test_in_flight_is_the_schedules_promise(schedule: Any) -> None:
    four_stages = plan(4, system=system(schedule=schedule))
    promised = [schedule.in_flight(four_stages.grid.place(stage), FlushInterval(0, 8, None, 0)) for stage in range(4)]
    assert [four_stages.budget(stage).in_flight for stage in range(4)] == promised
    assert four_stages.interval == FlushInterval(0, 8, None, 0)


@pytest.mark.parametrize("name", systems())
@pytest.mark.parametrize("split", ["even", "cost", "share"])
def test_the_peak_is_that_of_the_fullest_stage(name: str, split: str) -> None:
    """Which stages can be the fullest is known; all of them are asked here."""
    modelled = simulated(name)
    assert isinstance(modelled, SystemModel)
    assert modelled.name == name
    for layers in (8, 11, 13):
        model = Transformer(layers=layers, hidden=64, heads=4, sequence=32, vocabulary=500)
        for inter in (1, 2, 3, 5, 8):
            divided = plan(inter, shape=model, system=modelled, split=split, microbatch=2, batch=24)
            assert divided.peak == max(divided.budget(stage).peak for stage in range(inter))


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"batch": 10, "data": 4},
            fault(
                subject="a batch of 10 on 4 replicas with microbatches of 1",
                rule="replicas * microbatch divides the batch",
                legal="a batch of 8",
            ),
        ),
        (
            {"batch": 3, "microbatch": 4},
            fault(
                subject="a batch of 3 on 1 replicas",
                rule="replicas * microbatch divides the batch",
                legal="a batch of 4",
            ),
        ),
        (
            {"batch": 0},
            fault(subject="a batch of 0", rule="replicas * microbatch divides the batch", legal="a batch of 1"),
        ),
        ({"microbatch": 0}, fault("microbatch", "0", rule="at least 1 sequence", legal="1")),
        (
            {"inter": 5},
            fault(subject="5 stages for 4 blocks", rule="every stage holds at least one block", legal="grid.inter=4"),
        ),
        (
            {"inter": 5, "split": "share"},
            fault(subject="5 stages for 4 blocks", rule="every stage holds at least one block"),
        ),
        ({"tensor": 4}, fault(subject="2 heads on grid.tensor=4", rule="G_intra divides heads")),
    ],
)
def test_a_plan_that_cannot_be_is_refused(arguments: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        plan(**arguments)


def test_who_splits_no_layer_says_so() -> None:
    with refused(Unsupported, "grid.tensor", "2", legal="grid.tensor=1"):
        plan(tensor=2, system=system())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"activation_checkpointing": "layers"},
            fault("activation_checkpointing", "layers", legal="did you mean 'layer'?"),
        ),
        ({"scatter_messages": "forwards"}, fault("scatter_messages", "forwards", legal="did you mean 'forward'?")),
        ({"zero_stage": 2}, fault("zero_stage", "2", rule="ZeRO stages 0 and 1 are modelled", legal="zero_stage=1")),
        ({"bucket_numel": -1}, fault("modelled.bucket_numel", "-1", legal="0")),
        ({"buckets_per_reduction": -4}, fault("modelled.buckets_per_reduction", "-4")),
        ({"allreduces_per_update": -0.5}, fault("modelled.allreduces_per_update", "-0.5")),
    ],
)
def test_a_system_that_cannot_be_is_refused(arguments: dict[str, Any], expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        system(**arguments)


def test_an_unknown_split_is_refused() -> None:
    with refused(UnknownName, "split", "evenly", legal="did you mean 'even'?"):
        plan(split="evenly")


def test_another_grid_of_the_same_plan() -> None:
    """Microbatches stay as large as they were, unless told otherwise."""
    regrouped = plan(2, microbatch=2).on(Grid(data=2, inter=4))
    assert regrouped == plan(4, data=2, microbatch=2)
    assert regrouped.on(Grid(), 1) == plan(1)


# -- the papers' memory ------------------------------------------------------------------------------------------------


def pipelines(model: str, modelled: SystemModel, inter: int, gpus: int, batch: int) -> SimulationPlan:
    return SimulationPlan(shape(model), modelled, Grid(data=gpus // inter, inter=inter), batch, 1)


@pytest.mark.parametrize(
    ("modelled", "gpus", "printed"),
    [
        # AxoNN V-B: all 48 GPUs, 24 stages, before and after the memory optimisation with its bucket of 16 million
        (pipelines("transformer_12b", simulated("axonn_no_memopt"), 24, 48, 2048), 48, 520.0),
        (pipelines("transformer_12b", system(layout=partial(offloaded, bucket=16_000_000)), 24, 48, 2048), 48, 130.24),
        # SAMO I: one pipeline of 2.7B, the fewest GPUs that hold it
        (pipelines("gpt3_2_7b", simulated("axonn_no_memopt"), 8, 512, 512), 8, 80.16),
        (pipelines("gpt3_2_7b", simulated("axonn_samo"), 2, 512, 512), 2, 20.28),
    ],
    ids=["axonn before", "axonn after", "samo before", "samo after"],
)
def test_the_papers_memory_within_5_percent(modelled: SimulationPlan, gpus: int, printed: float) -> None:
    """520, 130.24, 80.16, 20.28 GB: bytes per parameter, checkpoints in flight and one segment; nothing is fitted."""
    total = modelled.total() * gpus / modelled.grid.size / 1e9
    assert total == pytest.approx(printed, rel=0.05)
