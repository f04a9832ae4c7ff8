"""PlanCost: seconds and bytes of passes and updates against hand sums, and its kernels by software generation.

The model's numbers are small: a block is 6656 flops, moves 1856 bytes and puts out 64; the head is 1024 flops.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import Chunk
from suite.memory import mixed, offloaded, pruned, sparse
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.cost.plan_kernels import GenerationKernels, RooflineKernels, kernels_of
from suite.simulate.network.machine import Link
from suite.simulate.operations.block import BlockKernels
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import TrainingSetup
from suite.workload import Transformer
from tests.support.modelled import TINY, conf, efficiency, machine, shape, simulated, system

FAST = machine(peak={"float16": 1024.0})  # flop/s: 6.5 s for a block of TINY, 1 s for its head
PLAIN = system(activation_checkpointing="none")
PRUNED = system(activation_checkpointing="none", layout=partial(pruned, sparsity=0.5))
SPARSE = system(activation_checkpointing="none", sparse=True, layout=partial(sparse, sparsity=0.5))


def cost(
    inter: int = 2,
    *,
    data: int = 1,
    tensor: int = 1,
    microbatch: int = 1,
    modelled: SystemModel | None = None,
    on: Any = FAST,
    split: str = "even",
    shape: Transformer = TINY,
    **software: Any,
) -> PlanCost:
    grid = Grid(data=data, inter=inter, tensor=tensor)
    used = modelled or system(activation_checkpointing="none", tensor=tensor > 1)
    return PlanCost(SimulationPlan(shape, used, grid, 8, microbatch, split), on, efficiency(**software))


def seconds(found: PlanCost) -> list[float]:
    """Of every forward pass, then of every backward pass."""
    stages = range(found.plan.grid.inter)
    return [found.compute(Op.parse(f"{stage}{kind}3")) for kind in "FB" for stage in stages]


SHARE = 6.5 * 4 / 3  # of three stages
MOVED, LOGITS = 1856 / 250, 2 * 384 / 250  # at half of 500 bytes/s; logits are written and read
SUM = 4 * 0.64  # twice a block, two ranks sum 64 bytes at 100 bytes/s


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # two blocks on each stage, the head on the last; a backward pass is two forward passes
        ({}, [13, 14, 26, 28]),
        ({"products": 0.5}, [26, 28, 52, 56]),
        ({"microbatch": 4}, [52, 56, 104, 112]),
        ({"inter": 1}, [27, 54]),
        ({"inter": 4}, [6.5, 6.5, 6.5, 7.5, 13, 13, 13, 15]),
        ({"inter": 3, "split": "share"}, [SHARE, SHARE, SHARE + 1, 2 * SHARE, 2 * SHARE, 2 * SHARE + 2]),
        # blocks are computed again, the head is not
        ({"modelled": system(activation_checkpointing="interval")}, [13, 14, 39, 41]),
        ({"modelled": system(activation_checkpointing="layer")}, [13, 14, 39, 41]),
        (
            {"traffic": 0.5},
            [13 + 2 * MOVED, 14 + 2 * MOVED + LOGITS, 26 + 4 * MOVED, 28 + 4 * MOVED + 2 * LOGITS],
        ),
        # a launch for each block and the head, however many sequences; computing again launches again
        ({"launch": 0.25}, [13.5, 14.75, 27, 29.5]),
        ({"launch": 0.25, "microbatch": 2}, [26.5, 28.75, 53, 57.5]),
        ({"launch": 0.25, "modelled": system()}, [13.5, 14.75, 40.5, 43]),
        # a pass inside the pipeline receives one message and sends one; at an end it has one of the two, alone none
        ({"message": 0.125}, [13.125, 14.125, 26.125, 28.125]),
        ({"message": 0.125, "inter": 4}, [6.625, 6.75, 6.75, 7.625, 13.125, 13.25, 13.25, 15.125]),
        ({"message": 0.125, "inter": 1}, [27, 54]),
        # a gradient is compressed once a microbatch, by the parameters of the stage: 1904 and 1888
        ({"modelled": PRUNED, "compress": 1e-3}, [13, 14, 26 + 1.904, 28 + 1.888]),
        ({"modelled": PRUNED, "compress": 1e-3, "microbatch": 2}, [26, 28, 52 + 1.904, 56 + 1.888]),
        ({"compress": 1e-3}, [13, 14, 26, 28]),
        # sparse products are credited with the flops of the dense ones, and the head is dense
        ({"modelled": SPARSE, "sparse": 0.25, "products": 0.5}, [52, 54, 104, 108]),
        # a system's own build
        ({"relative": {"small": 0.5}}, [26, 28, 52, 56]),
        ({"relative": {"large": 0.5}}, [13, 14, 26, 28]),
        # half the products, and sums; a backward pass adds gradients as often, and computing again sums again
        ({"tensor": 2}, [6.5 + SUM, 7 + SUM, 13 + SUM, 14 + SUM]),
        ({"tensor": 2, "within": 0.5, "hop": 0.25}, [each + 2 * SUM + 4 * 0.5 for each in (6.5, 7, 13, 14)]),
        ({"tensor": 2, "modelled": system(tensor=True)}, [6.5 + SUM, 7 + SUM, 19.5 + 2 * SUM, 20.5 + 2 * SUM]),
    ],
)
def test_seconds_of_passes_by_hand(changes: dict[str, Any], expected: list[float]) -> None:
    assert (TINY.block().flops, TINY.head().flops) == (6.5 * 1024, 1024)
    assert seconds(cost(**changes)) == pytest.approx(expected)


def test_a_split_layer_is_summed_across_nodes() -> None:
    """Four ranks on nodes of two: 96 bytes of each rank through the adapters of a node."""
    wide = Transformer(layers=4, hidden=8, heads=4, sequence=4, vocabulary=16)
    two = machine(peak={"float16": 1024.0}, adapters=2)
    across = cost(tensor=4, shape=wide, on=two, network=0.5, hop=0.25, adapters=2)
    assert across.tensor_link() == Link(0.25, 10.0)
    assert cost(tensor=4, shape=wide, on=two, network=0.5, adapters=1).tensor_link() == Link(0.0, 5.0)
    assert seconds(across)[0] == pytest.approx(2 * (6.5 / 4 + 2 * (9.6 + 6 * 0.25)))


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


@pytest.mark.parametrize(
    ("changes", "stage", "reduce", "step"),
    [
        # 1904 and 1888 parameters; two replicas send 2 x 1/2 of 2 bytes each; a step moves 36 + 2 bytes each at 500
        ({}, 0, 0, 38 * 1904 / 500),
        ({"data": 2}, 0, 2 * 1904, 38 * 1904 / 500),
        ({"data": 2}, 1, 2 * 1888, 38 * 1888 / 500),
        ({"data": 4}, 0, 2 * 0.75 * 2 * 1904, 38 * 1904 / 500),
        ({"traffic": 0.25}, 0, 0, 38 * 1904 / 125),
        ({"data": 2, "tensor": 2}, 0, 2 * 952, 38 * 952 / 500),
        # ZeRO: an all-reduce and an all-gather are 1.5 all-reduces; every half-precision weight is written
        (
            {"data": 2, "modelled": system(zero_stage=1, allreduces_per_update=1.5)},
            *(0, 3 * 1904, (36 * 952 + 2 * 1904) / 500),
        ),
        ({"data": 2, "modelled": system(allreduces_per_update=0)}, 0, 0, 38 * 1904 / 500),
        # states on the host: 12 bytes a parameter there, and 12 back, at 50 bytes/s
        ({"modelled": system(**OFFLOADED)}, 0, 0, 24 * 1904 / 50),
        ({"modelled": system(**OFFLOADED), "host": 0.5}, 0, 0, 24 * 1904 / 25),
        ({"modelled": system(layout=mixed), "host": 0.5}, 0, 0, 38 * 1904 / 500),
        # a quarter of 1904 parameters is kept; all half-precision weights are written, or with sparse kernels a quarter
        (
            {"data": 2, "modelled": system(layout=partial(pruned, sparsity=0.75))},
            *(0, 2 * 476, (36 * 476 + 2 * 1904) / 500),
        ),
        (
            {"data": 2, "modelled": system(sparse=True, layout=partial(sparse, sparsity=0.75))},
            *(0, 2 * 476, 38 * 476 / 500),
        ),
        ({"data": 2, "modelled": system(layout=partial(pruned, sparsity=1.0))}, 0, 0, 2 * 1904 / 500),
    ],
)
def test_an_update_is_one_reduction_then_one_step(
    changes: dict[str, Any], stage: int, reduce: int, step: float
) -> None:
    assert cost(**changes).update(stage) == (Chunk(reduce, pytest.approx(step)),)  # type: ignore[arg-type]


def test_tied_ends_exchange_the_embedding() -> None:
    """2 bytes of each of 128 parameters, at the two ends of a pipeline and nowhere else."""
    ties = system(tied_embeddings=True)
    tied, plain = cost(4, data=2, modelled=ties), cost(4, data=2)
    assert [tied.update(n)[0].reduce - plain.update(n)[0].reduce for n in range(4)] == [256, 0, 0, 256]
    split = cost(data=2, tensor=2, modelled=system(tied_embeddings=True, tensor=True))
    assert split.update(0)[0].reduce == 2 * 952 + 128
    assert cost(1, data=2, modelled=ties).update(0) == cost(1, data=2).update(0)  # one stage holds both
    apart = replace(TINY, tied=False)
    assert cost(data=2, modelled=ties, shape=apart).update(0) == cost(data=2, shape=apart).update(0)


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
    generation = replace(generations()["megatron"], products={"v100": share})
    sizes = (plan.grid.tensor, 1, 1, 1, plan.microbatch, 16)
    types: Any = {"precision": "float16", "attention": "fused_softmax"}
    return BlockKernels(TrainingSetup(plan.shape, SUMMIT, generation, None, *sizes, **types))


@pytest.mark.parametrize("tensor", [1, 2])
def test_the_kernels_of_a_plan_are_those_of_its_generation(tensor: int) -> None:
    plan = planned(tensor=tensor, microbatch=2)
    ours, theirs = kernels_of(plan, SUMMIT, SOFTWARE), block_kernels(plan, SOFTWARE.products)
    assert isinstance(ours, GenerationKernels)
    assert ours.block == theirs.computation(theirs.weights)
    assert ours.head.weight == theirs.head.weight
    assert ours.restoring == generations()["megatron"].recompute_host
    halved = kernels_of(plan, SUMMIT, replace(SOFTWARE, relative={"megatron_lm": 0.5}))
    assert halved.block.weight == block_kernels(plan, SOFTWARE.products / 2).weights.weight
    roofline = SimulationPlan(shape("gpt3_xl"), system(sparse=True, layout=sparse), Grid(inter=2), 8, 1)
    assert isinstance(kernels_of(roofline, SUMMIT, efficiency()), RooflineKernels)


def test_sparse_products_take_longer_and_attention_does_not() -> None:
    plan = planned("sputnik")
    ours = kernels_of(plan, SUMMIT, SOFTWARE)
    dense, slow = (block_kernels(plan, share) for share in (SOFTWARE.products, SOFTWARE.sparse))
    more = ours.block.forward - dense.computation(dense.weights).forward
    assert more == pytest.approx(slow.weights.forward - dense.weights.forward)
    assert ours.head == kernels_of(planned(), SUMMIT, SOFTWARE).head


def test_a_stage_has_its_blocks_and_the_ends_have_embedding_and_head() -> None:
    cost = PlanCost(planned(), SUMMIT, SOFTWARE)
    kernels, blocks = cost.kernels, planned().shape.layers / 4
    assert cost.forward[1] == pytest.approx(blocks * kernels.block.forward)
    assert cost.forward[0] - cost.forward[1] == pytest.approx(kernels.embedding.forward)
    assert cost.forward[3] - cost.forward[1] == pytest.approx(kernels.head.forward)
    again = kernels.block.forward + kernels.restoring
    assert cost.backward[1] == pytest.approx(blocks * (kernels.block.backward + again))
    assert cost.backward[3] - cost.backward[1] == pytest.approx(kernels.head.backward)
