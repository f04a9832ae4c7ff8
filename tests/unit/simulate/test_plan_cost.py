"""PlanCost: seconds and bytes of passes and updates against the kernels of its generation and hand sums."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import Chunk
from suite.memory import mixed, offloaded, pruned, sparse
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.operations.block import NOTHING, BlockKernels, BlockTimes
from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import TrainingSetup
from suite.workload import Transformer
from tests.support.modelled import TINY, conf, efficiency, machine, shape, simulated, system
from tests.support.refusals import refused

PRUNED = system(layout=partial(pruned, sparsity=0.5))


def cost(
    inter: int = 2,
    *,
    data: int = 1,
    tensor: int = 1,
    microbatch: int = 1,
    modelled: SystemModel | None = None,
    split: str = "even",
    shape: Transformer = TINY,
    **software: Any,
) -> PlanCost:
    grid = Grid(data=data, inter=inter, tensor=tensor)
    used = modelled or system(activation_checkpointing="none", tensor=tensor > 1)
    return PlanCost(SimulationPlan(shape, used, grid, 8, microbatch, split), machine(), efficiency(**software))


def more(changes: dict[str, Any], **software: Any) -> list[BlockTimes]:
    """Seconds that constants add to the passes of each stage."""
    pairs = zip(cost(**changes, **software).passes, cost(**changes).passes, strict=True)
    return [one + other * -1 for one, other in pairs]


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({}, [2, 2]),
        ({"inter": 1}, [4]),
        ({"inter": 3, "split": "share"}, [4 / 3] * 3),
        ({"modelled": system()}, [2, 2]),
    ],
)
def test_a_stage_has_its_blocks_and_the_ends_have_embedding_and_head(
    changes: dict[str, Any], blocks: list[float]
) -> None:
    found = cost(**changes)
    kernels, last = found.kernels, len(blocks) - 1
    for stage, (count, passes) in enumerate(zip(blocks, found.passes, strict=True)):
        ends = (kernels.embedding if stage == 0 else NOTHING) + (kernels.head if stage == last else NOTHING)
        whole = kernels.block * count + ends
        assert (passes.forward, passes.backward) == pytest.approx((whole.forward, whole.backward))
    again = kernels.block.input - kernels.computation.input
    assert again == pytest.approx(kernels.computation.forward if "modelled" in changes else 0.0)


@pytest.mark.parametrize(
    ("changes", "software", "extra"),
    [
        # a pass inside the pipeline receives one message and sends one; at an end it has one of the two, alone none
        ({}, {"message": 0.125}, [(0.125, 0.125, 0)] * 2),
        ({"inter": 4}, {"message": 0.125}, [(n / 8, n / 8, 0) for n in (1, 2, 2, 1)]),
        ({"inter": 1}, {"message": 0.125}, [(0, 0, 0)]),
        # a gradient is compressed once a microbatch, by the parameters of the stage: 1904 and 1888
        ({"modelled": PRUNED}, {"compress": 1e-3}, [(0, 0, 1.904), (0, 0, 1.888)]),
        ({"modelled": PRUNED, "microbatch": 2}, {"compress": 1e-3}, [(0, 0, 1.904), (0, 0, 1.888)]),
        ({}, {"compress": 1e-3}, [(0, 0, 0)] * 2),
    ],
)
def test_messages_and_compression_by_hand(
    changes: dict[str, Any], software: dict[str, float], extra: list[tuple[float, ...]]
) -> None:
    added = [(one.forward, one.input, one.weight) for one in more(changes, **software)]
    assert added == [pytest.approx(each, abs=1e-9) for each in extra]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (64, 64)),
        ({"microbatch": 4}, (256, 256)),
        # an activation, and its gradient, of two sequences on two ranks
        ({"microbatch": 2, "tensor": 2, "modelled": system(tensor=True)}, (128, 128)),
        ({"microbatch": 2, "tensor": 2, "modelled": system(tensor=True, scatter_messages="forward")}, (64, 128)),
        ({"microbatch": 2, "tensor": 2, "modelled": system(tensor=True, scatter_messages="both")}, (64, 64)),
        ({"microbatch": 2, "modelled": system(scatter_messages="both")}, (128, 128)),
    ],
)
def test_bytes_of_messages_by_hand(changes: dict[str, Any], sizes: tuple[int, int]) -> None:
    found = cost(**changes)
    assert (found.message(Op.parse("0F2")), found.message(Op.parse("1B2"))) == sizes


# -- updates -----------------------------------------------------------------------------------------------------------

OFFLOADED = {"layout": partial(offloaded, bucket=100)}
BUCKETS = system(**OFFLOADED, bucket_numel=100, buckets_per_reduction=4)
STEP = 44 / 400  # seconds per parameter: a step moves 44 bytes at 0.8 of 500 bytes/s
HALVES = 2 / 400  # of a half-precision weight that is written


@pytest.mark.parametrize(
    ("changes", "stage", "reduce", "step"),
    [
        # 1904 and 1888 parameters; two replicas send 2 x 1/2 of 2 bytes each
        ({}, 0, 0, STEP * 1904),
        ({"data": 2}, 0, 2 * 1904, STEP * 1904),
        ({"data": 2}, 1, 2 * 1888, STEP * 1888),
        ({"data": 4}, 0, 2 * 0.75 * 2 * 1904, STEP * 1904),
        ({"data": 2, "tensor": 2, "modelled": system(tensor=True)}, 0, 2 * 952, STEP * 952),
        # ZeRO: an all-reduce and an all-gather are 1.5 all-reduces
        ({"data": 2, "modelled": system(zero_stage=1, allreduces_per_update=1.5)}, 0, 3 * 1904, STEP * 952),
        ({"data": 2, "modelled": system(allreduces_per_update=0)}, 0, 0, STEP * 1904),
        # states on the host: 12 bytes a parameter there, and 12 back, at 50 bytes/s
        ({"modelled": system(**OFFLOADED)}, 0, 0, 24 * 1904 / 50),
        ({"modelled": system(**OFFLOADED), "host": 0.5}, 0, 0, 24 * 1904 / 25),
        ({"modelled": system(layout=mixed), "host": 0.5}, 0, 0, STEP * 1904),
        # a quarter of 1904 parameters is kept; all half-precision weights are written, or with sparse kernels a quarter
        (
            {"data": 2, "modelled": system(layout=partial(pruned, sparsity=0.75))},
            0,
            2 * 476,
            STEP * 476 + HALVES * 1428,
        ),
        (
            {"data": 2, "modelled": system(sparse=True, layout=partial(sparse, sparsity=0.75)), "sparse": 0.5},
            *(0, 2 * 476, STEP * 476),
        ),
        ({"data": 2, "modelled": system(layout=partial(pruned, sparsity=1.0))}, 0, 0, HALVES * 1904),
    ],
)
def test_an_update_is_one_reduction_then_one_step(
    changes: dict[str, Any], stage: int, reduce: int, step: float
) -> None:
    assert cost(**changes).update(stage) == (Chunk(reduce, pytest.approx(step)),)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [1, 2])
def test_tied_ends_exchange_the_embedding(data: int) -> None:
    """2 bytes of each of 128 parameters, at the two ends of a pipeline and nowhere else."""
    ties = system(tied_embeddings=True)
    tied, plain = cost(4, data=data, modelled=ties), cost(4, data=data)
    seconds = all_reduce_seconds(2 * 128, SpacedRanks(2, 3), machine(), tied.setup.generation)
    added = [tied.update(n)[0].step - plain.update(n)[0].step for n in range(4)]
    assert added == [pytest.approx(each) for each in (seconds, 0, 0, seconds)]
    assert cost(1, data=data, modelled=ties).update(0) == cost(1, data=data).update(0)  # one stage holds both
    apart = replace(TINY, tied=False)
    assert cost(data=data, modelled=ties, shape=apart).update(0) == cost(data=data, shape=apart).update(0)


def test_an_update_in_buckets() -> None:
    """AxoNN V-C: reductions of four buckets of 100, and the steps between them: 1904 parameters are five chunks."""
    chunk = Chunk(round(2 * 1904 / 5), pytest.approx(2 * 12 * 1904 / 25 / 5))  # type: ignore[arg-type]
    bucketed = cost(data=2, modelled=BUCKETS, host=0.5)
    assert (bucketed.update(0), len(bucketed.update(1))) == ((chunk,) * 5, 5)
    for changes, chunks in (
        *(({"bucket_numel": 100, "buckets_per_reduction": each}, -(-20 // each)) for each in (1, 2, 5, 20)),
        ({"bucket_numel": 100}, 1),
        ({"buckets_per_reduction": 4}, 1),
    ):
        assert len(cost(data=2, modelled=system(**OFFLOADED, **changes)).update(0)) == chunks, changes


# -- kernels of a plan -------------------------------------------------------------------------------------------------

SUMMIT, SOFTWARE = conf("machine", "summit"), conf("efficiency", "summit")


def planned(name: str = "megatron_lm", tensor: int = 1, microbatch: int = 1) -> SimulationPlan:
    grid = Grid(inter=4, tensor=tensor)
    return SimulationPlan(shape("gpt3_2_7b"), simulated(name), grid, 16, microbatch)


def block_kernels(plan: SimulationPlan, share: float) -> BlockKernels:
    """Kernels of suite.simulate.operations for the same block."""
    generation = replace(
        generations()["megatron"], products={"v100": share}, within=0.77, between=0.8, collective=1e-5, hop=5e-6
    )
    sizes = (plan.grid.tensor, 1, 1, 1, plan.microbatch, 16)
    types: Any = {"precision": "float16", "attention": "fused_softmax", "recompute": "full"}
    return BlockKernels(TrainingSetup(plan.shape, SUMMIT, generation, None, *sizes, **types))


@pytest.mark.parametrize("tensor", [1, 2])
def test_the_kernels_of_a_plan_are_those_of_its_generation(tensor: int) -> None:
    plan = planned(tensor=tensor, microbatch=2)
    ours, theirs = PlanCost(plan, SUMMIT, SOFTWARE).kernels, block_kernels(plan, SOFTWARE.products)
    assert (ours.block, ours.head.weight) == (theirs.block, theirs.head.weight)
    halved = PlanCost(plan, SUMMIT, replace(SOFTWARE, relative={"megatron_lm": 0.5})).kernels
    assert halved.block.weight == block_kernels(plan, SOFTWARE.products / 2).weights.weight
    with refused(InvalidRequest, "efficiency.generation", legal="efficiency.generation=compiled"):
        PlanCost(plan, SUMMIT, replace(SOFTWARE, generation=""))


def test_sparse_products_take_longer_and_attention_does_not() -> None:
    plan = planned("sputnik")
    ours = PlanCost(plan, SUMMIT, SOFTWARE).kernels
    dense, slow = (block_kernels(plan, share) for share in (SOFTWARE.products, SOFTWARE.sparse))
    assert ours.computation.forward - dense.computation.forward == pytest.approx(
        slow.weights.forward - dense.weights.forward
    )
    assert ours.head == PlanCost(planned(), SUMMIT, SOFTWARE).kernels.head
