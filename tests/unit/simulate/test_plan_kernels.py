"""Kernels of a plan: by software generation, or as a roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.core.errors import UnknownName
from suite.core.grid import Grid
from suite.memory import sparse
from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.plan_cost import PlanCost
from suite.simulate.cost.plan_kernels import GenerationKernels, RooflineKernels, kernels_of
from suite.simulate.operations.block import BlockKernels
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import TrainingSetup
from suite.workload import LanguageModel
from tests.support.modelled import conf, efficiency, shape, simulated, system
from tests.support.refusals import refused

SUMMIT, SOFTWARE = conf("machine", "summit"), conf("efficiency", "summit")


def planned(name: str = "megatron_lm", tensor: int = 1, microbatch: int = 1) -> SimulationPlan:
    grid = Grid(inter=4, tensor=tensor)
    return SimulationPlan(shape("gpt3_2_7b"), simulated(name), grid, 16, microbatch)


def block_kernels(plan: SimulationPlan, share: float) -> BlockKernels:
    """Kernels of suite.simulate.operations for the same block."""
    generation = replace(generations()["megatron"], products={"v100": share})
    return BlockKernels(
        TrainingSetup(
            LanguageModel.of(plan.shape),
            SUMMIT,
            generation,
            None,
            plan.grid.tensor,
            1,
            1,
            1,
            plan.microbatch,
            16,
            precision="float16",
            attention="fused_softmax",
        )
    )


@pytest.mark.parametrize("tensor", [1, 2])
def test_the_kernels_of_a_plan_are_those_of_its_generation(tensor: int) -> None:
    plan = planned(tensor=tensor, microbatch=2)
    ours, theirs = kernels_of(plan, SUMMIT, SOFTWARE), block_kernels(plan, SOFTWARE.products)
    assert isinstance(ours, GenerationKernels)
    assert ours.block == theirs.computation(theirs.weights)
    assert ours.head.weight == theirs.head.weight
    assert ours.restoring == generations()["megatron"].recompute_host


def test_a_system_with_a_build_of_its_own_reaches_another_share() -> None:
    plan = planned()
    halved = kernels_of(plan, SUMMIT, replace(SOFTWARE, relative={"megatron_lm": 0.5}))
    assert halved.block.weight == block_kernels(plan, SOFTWARE.products / 2).weights.weight


def test_sparse_products_take_longer_and_attention_does_not() -> None:
    plan = planned("sputnik")
    ours = kernels_of(plan, SUMMIT, SOFTWARE)
    dense, slow = (block_kernels(plan, share) for share in (SOFTWARE.products, SOFTWARE.sparse))
    assert ours.block.forward - dense.computation(dense.weights).forward == pytest.approx(
        slow.weights.forward - dense.weights.forward
    )
    assert ours.head == kernels_of(planned(), SUMMIT, SOFTWARE).head


def test_a_stage_has_its_blocks_and_the_ends_have_embedding_and_head() -> None:
    plan = planned()
    cost = PlanCost(plan, SUMMIT, SOFTWARE)
    kernels, blocks = cost.kernels, plan.shape.layers / 4
    assert cost.forward[1] == pytest.approx(blocks * kernels.block.forward)
    assert cost.forward[0] - cost.forward[1] == pytest.approx(kernels.embedding.forward)
    assert cost.forward[3] - cost.forward[1] == pytest.approx(kernels.head.forward)
    again = kernels.block.forward + kernels.restoring
    assert cost.backward[1] == pytest.approx(blocks * (kernels.block.backward + again))
    assert cost.backward[3] - cost.backward[1] == pytest.approx(kernels.head.backward)


def test_without_a_generation_the_kernels_are_a_roofline() -> None:
    plan = SimulationPlan(shape("gpt3_xl"), system(sparse=True, layout=sparse), Grid(inter=2), 8, 1)
    assert isinstance(kernels_of(plan, SUMMIT, efficiency()), RooflineKernels)


def test_an_unknown_generation_is_refused() -> None:
    with refused(UnknownName, "efficiency.generation", "megatrom"):
        efficiency(generation="megatrom")
