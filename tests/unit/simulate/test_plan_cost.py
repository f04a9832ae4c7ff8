"""PlanCost, with a roofline of its kernels: seconds and bytes of passes and updates against hand sums.

The model's numbers are small: a block is 6656 flops, moves 1856 bytes and puts out 64; the head is 1024 flops.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from suite.core.grid import Grid
from suite.core.op import Op
from suite.core.protocols import Chunk
from suite.memory import mixed, offloaded, pruned, sparse
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.plan_cost import PlanCost, of
from suite.simulate.network.machine import Link
from suite.workload import Transformer
from tests.support.modelled import TINY, efficiency, machine, system

FAST = machine(peak={"float16": 1024.0})  # flop/s: 6.5 s for a block of TINY, 1 s for its head
BLOCK, HEAD = 6.5, 1.0


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


def test_the_model_is_what_is_counted_by_hand() -> None:
    assert (TINY.block().flops, TINY.head().flops) == (BLOCK * 1024, HEAD * 1024)
    kernels = cost().plan.kernels
    assert (kernels.moved, kernels.boundary, kernels.logits) == (1856, 64, 384)


def test_products() -> None:
    """Two blocks on each stage, the head on the last; a backward pass is two forward passes."""
    assert seconds(cost()) == [13.0, 14.0, 26.0, 28.0]
    assert seconds(cost(products=0.5)) == [26.0, 28.0, 52.0, 56.0]
    assert seconds(cost(microbatch=4)) == [52.0, 56.0, 104.0, 112.0]
    assert seconds(cost(1)) == [27.0, 54.0]
    assert seconds(cost(4)) == [6.5, 6.5, 6.5, 7.5, 13.0, 13.0, 13.0, 15.0]


def test_equal_shares_of_the_blocks() -> None:
    share = BLOCK * 4 / 3
    assert seconds(cost(3, split="share")) == pytest.approx(
        [share, share, share + HEAD, 2 * share, 2 * share, 2 * share + 2 * HEAD]
    )


@pytest.mark.parametrize("checkpoints", ["interval", "layer"])
def test_blocks_are_computed_again_and_the_head_is_not(checkpoints: str) -> None:
    recomputing = cost(modelled=system(activation_checkpointing=checkpoints))
    assert seconds(recomputing) == [13.0, 14.0, 39.0, 41.0]


def test_traffic() -> None:
    """Half of 500 bytes/s: 7.424 s for what a block moves, and 3.072 s for logits that are written and read."""
    moved, logits = 1856 / 250, 2 * 384 / 250
    assert seconds(cost(traffic=0.5)) == pytest.approx(
        [13 + 2 * moved, 14 + 2 * moved + logits, 26 + 4 * moved, 28 + 4 * moved + 2 * logits]
    )
    assert seconds(cost(traffic=0.5, microbatch=2)) == pytest.approx([2 * t for t in seconds(cost(traffic=0.5))])


def test_every_layer_pass_is_launched() -> None:
    """0.25 s for each block and the head, however many sequences; computing again launches again."""
    assert seconds(cost(launch=0.25)) == [13.5, 14.75, 27.0, 29.5]
    assert seconds(cost(launch=0.25, microbatch=2)) == [26.5, 28.75, 53.0, 57.5]
    assert seconds(cost(launch=0.25, modelled=system())) == [13.5, 14.75, 40.5, 43.0]


def test_a_stage_spends_time_on_each_message() -> None:
    """A pass inside the pipeline receives one and sends one; at an end it has one of the two, alone none."""
    assert seconds(cost(message=0.125)) == [13.125, 14.125, 26.125, 28.125]
    assert seconds(cost(4, message=0.125)) == [6.625, 6.75, 6.75, 7.625, 13.125, 13.25, 13.25, 15.125]
    assert seconds(cost(1, message=0.125)) == [27.0, 54.0]


def test_gradients_are_compressed_in_backward_passes_of_a_pruned_network() -> None:
    """Once a microbatch, by the parameters of the stage: 1904 and 1888."""
    samo = system(activation_checkpointing="none", layout=partial(pruned, sparsity=0.5))
    assert seconds(cost(modelled=samo, compress=1e-3)) == pytest.approx([13.0, 14.0, 26 + 1.904, 28 + 1.888])
    assert seconds(cost(modelled=samo, compress=1e-3, microbatch=2)) == pytest.approx([26, 28, 52 + 1.904, 56 + 1.888])
    assert seconds(cost(modelled=samo)) == seconds(cost(compress=1e-3)) == [13.0, 14.0, 26.0, 28.0]


def test_sparse_products_are_credited_with_the_dense_ones_flops() -> None:
    """The head is dense: embeddings are never pruned."""
    kernels = system(activation_checkpointing="none", sparse=True, layout=partial(sparse, sparsity=0.5))
    assert seconds(cost(modelled=kernels, sparse=0.25, products=0.5)) == [52.0, 54.0, 104.0, 108.0]


def test_a_systems_own_build() -> None:
    """Its share of what others reach, and only its."""
    assert seconds(cost(relative={"small": 0.5})) == [26.0, 28.0, 52.0, 56.0]
    assert seconds(cost(relative={"large": 0.5})) == seconds(cost())


def test_a_split_layer_is_summed_inside_a_node() -> None:
    """Half the products; twice a block, 64 bytes are summed by two ranks at 100 bytes/s: 0.64 s, and two steps."""
    halves = [6.5, 7.0, 13.0, 14.0]
    sums = [4 * 0.64, 4 * 0.64, 4 * 0.64, 4 * 0.64]  # a backward pass adds gradients as often
    assert seconds(cost(tensor=2)) == pytest.approx([a + b for a, b in zip(halves, sums, strict=True)])
    half_speed = cost(tensor=2, within=0.5, hop=0.25)
    sums = [4 * (1.28 + 0.5)] * 4
    assert seconds(half_speed) == pytest.approx([a + b for a, b in zip(halves, sums, strict=True)])
    again = cost(tensor=2, modelled=system(tensor=True))  # computing again sums again
    assert seconds(again)[2:] == pytest.approx([3 * 6.5 + 2 * 4 * 0.64, 3 * 6.5 + 2 * 4 * 0.64 + 2 * 0.5])


def test_a_split_layer_is_summed_across_nodes() -> None:
    """Four ranks on nodes of two: 96 bytes of each rank through the adapters of a node."""
    wide = Transformer(layers=4, hidden=8, heads=4, sequence=4, vocabulary=16)
    two = machine(peak={"float16": 1024.0}, adapters=2)
    across = cost(tensor=4, shape=wide, on=two, network=0.5, hop=0.25, adapters=2)
    assert across.tensor_link() == Link(0.25, 10.0)
    assert cost(tensor=4, shape=wide, on=two, network=0.5, adapters=1).tensor_link() == Link(0.0, 5.0)
    assert seconds(across)[0] == pytest.approx(2 * (6.5 / 4 + 2 * (9.6 + 6 * 0.25)))
    assert cost(tensor=2, network=0.5).tensor_link() == Link(0.0, 100.0)


def test_a_configs_own_model_and_grid() -> None:
    """Cost models of conf/cost: the plan is made here."""
    grid, used = Grid(inter=2), system(activation_checkpointing="none")
    configured = of(
        machine=FAST, efficiency=efficiency(), system=used, shape=TINY, grid=grid, batch=8, microbatch=2, split="share"
    )
    assert configured.plan == SimulationPlan(TINY, used, grid, 8, 2, "share")
    assert seconds(configured) == [26.0, 28.0, 52.0, 56.0]


def test_an_evaluation_is_a_forward_pass() -> None:
    assert cost().compute(Op.parse("1E4")) == 14.0


# -- messages ----------------------------------------------------------------------------------------------------------


def messages(found: PlanCost) -> tuple[int, int]:
    return found.message(Op.parse("0F2")), found.message(Op.parse("1B2"))


def test_a_message_is_the_output_of_a_block() -> None:
    assert messages(cost()) == (64, 64)
    assert messages(cost(microbatch=4)) == (256, 256)


@pytest.mark.parametrize(("sliced", "sizes"), [("none", (128, 128)), ("forward", (64, 128)), ("both", (64, 64))])
def test_the_ranks_of_a_split_layer_may_share_messages_out(sliced: str, sizes: tuple[int, int]) -> None:
    """An activation, and its gradient, of two sequences on two ranks."""
    assert messages(cost(tensor=2, microbatch=2, modelled=system(tensor=True, scatter_messages=sliced))) == sizes
    assert messages(cost(microbatch=2, modelled=system(scatter_messages=sliced))) == (128, 128)


# -- updates -----------------------------------------------------------------------------------------------------------


def chunk(reduce: int, step: float) -> Chunk:
    """Its step up to rounding."""
    return Chunk(reduce, pytest.approx(step))  # type: ignore[arg-type]


ENTRIES = (160 + 2 * 872, 2 * 872 + 16 + 128)  # of TINY's two stages: 1904, 1888


def test_one_reduction_then_one_step() -> None:
    """A ring over 2 replicas sends 2 x 1/2 of 2 bytes a parameter; a step moves 36 + 2 bytes a parameter at 500."""
    replicated = cost(data=2)
    assert [replicated.update(stage) for stage in range(2)] == [(chunk(2 * n, 38 * n / 500),) for n in ENTRIES]
    assert cost(data=4).update(0)[0].reduce == 2 * 0.75 * 2 * 1904
    assert cost().update(0) == (chunk(0, 38 * 1904 / 500),)
    assert cost(traffic=0.25).update(0) == (chunk(0, 38 * 1904 / 125),)


def test_a_split_layer_reduces_and_steps_its_part() -> None:
    assert cost(data=2, tensor=2).update(0) == (chunk(2 * 952, 38 * 952 / 500),)


def test_zero_steps_a_share_and_gathers() -> None:
    """An all-reduce and an all-gather are 1.5 all-reduces; every half-precision weight is written."""
    zero = system(zero_stage=1, allreduces_per_update=1.5)
    assert cost(data=2, modelled=zero).update(0) == (chunk(3 * 1904, (36 * 952 + 2 * 1904) / 500),)
    assert cost(data=2, modelled=system(allreduces_per_update=0)).update(0)[0].reduce == 0


def test_tied_ends_exchange_the_embedding() -> None:
    """2 bytes of each of 128 parameters, at the two ends of a pipeline and nowhere else."""
    ties = system(tied_embeddings=True)
    tied = cost(4, data=2, modelled=ties)
    plain = cost(4, data=2)
    more = [tied.update(n)[0].reduce - plain.update(n)[0].reduce for n in range(4)]
    assert more == [256, 0, 0, 256]
    split = cost(data=2, tensor=2, modelled=system(tied_embeddings=True, tensor=True))
    assert split.update(0)[0].reduce == 2 * 952 + 128
    assert cost(1, data=2, modelled=ties).update(0) == cost(1, data=2).update(0)  # one stage holds both
    apart = Transformer(layers=4, hidden=8, heads=2, sequence=4, vocabulary=16, tied=False)
    assert cost(data=2, modelled=ties, shape=apart).update(0) == cost(data=2, shape=apart).update(0)


def test_an_update_in_buckets() -> None:
    """AxoNN V-C: reductions of four buckets of 100, and the steps between them: 1904 parameters are five chunks."""
    buckets = system(layout=partial(offloaded, bucket=100), bucket_numel=100, buckets_per_reduction=4)
    bucketed = cost(data=2, modelled=buckets, host=0.5)
    assert bucketed.update(0) == (chunk(round(2 * 1904 / 5), 2 * 12 * 1904 / 25 / 5),) * 5
    assert len(bucketed.update(1)) == -(-1888 // 400)
    for coarsening, chunks in ((1, 20), (2, 10), (5, 4), (20, 1)):
        one = system(layout=partial(offloaded, bucket=100), bucket_numel=100, buckets_per_reduction=coarsening)
        assert len(cost(data=2, modelled=one).update(0)) == chunks
    assert len(cost(data=2, modelled=system(bucket_numel=100)).update(0)) == 1
    assert len(cost(data=2, modelled=system(buckets_per_reduction=4)).update(0)) == 1


def test_offloaded_states_cross_the_hosts_link_both_ways() -> None:
    """12 bytes a parameter there, and 12 back, at 50 bytes/s."""
    offload = system(layout=partial(offloaded, bucket=100))
    assert cost(modelled=offload).step(0) == pytest.approx(24 * 1904 / 50)
    assert cost(modelled=offload, host=0.5).step(0) == pytest.approx(24 * 1904 / 25)
    assert cost(modelled=system(layout=mixed), host=0.5).step(0) == pytest.approx(38 * 1904 / 500)


def test_a_pruned_network_reduces_and_steps_what_is_kept() -> None:
    """Of 1904 parameters a quarter, 476; all half-precision weights are written, or with sparse kernels 476 of them."""
    samo = cost(data=2, modelled=system(layout=partial(pruned, sparsity=0.75)))
    assert samo.update(0) == (chunk(2 * 476, (36 * 476 + 2 * 1904) / 500),)
    kernels = cost(data=2, modelled=system(sparse=True, layout=partial(sparse, sparsity=0.75)))
    assert kernels.update(0) == (chunk(2 * 476, 38 * 476 / 500),)
    nothing = cost(data=2, modelled=system(layout=partial(pruned, sparsity=1.0)))
    assert nothing.update(0) == (chunk(0, 2 * 1904 / 500),)
