"""Seconds of the kernels of a plan's blocks and head, for one microbatch and one device.

Two models: kernels one by one with software of a generation (suite.simulate.operations), and a roofline, which takes
flops over the reached flop/s and bytes over the reached bandwidth. An efficiency selects one by its `generation`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Protocol

from suite.simulate.block_model import SimulationPlan
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine
from suite.simulate.operations.block import NOTHING, BlockKernels, BlockTimes
from suite.simulate.operations.generation import SoftwareGeneration, generations
from suite.simulate.operations.setup import TrainingSetup

LOGITS = 2  # times that the head's outputs, in both precisions, are moved in a forward pass: written, and read


class PlanKernels(Protocol):
    """Kernels without communication and without recomputation.

    Attributes:
        block, head, embedding: Seconds of one of them.
        restoring: Seconds before a block is computed again.
    """

    @property
    def block(self) -> BlockTimes: ...
    @property
    def head(self) -> BlockTimes: ...
    @property
    def embedding(self) -> BlockTimes: ...
    @property
    def restoring(self) -> float: ...


def kernels_of(plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> PlanKernels:
    """Kernels of a plan."""
    if not efficiency.generation:
        return RooflineKernels(plan, machine, efficiency)
    return GenerationKernels(plan, machine, efficiency, generations()[efficiency.generation])


def reached_share(plan: SimulationPlan, efficiency: Efficiency, *, sparse: bool = False) -> float:
    """Constant of products with weights. Sparse products are credited with the flops of dense ones."""
    share = efficiency.sparse if sparse else efficiency.products
    return share * efficiency.relative.get(plan.system.name, 1.0)


class RooflineKernels:
    """Products at a share of the best published rate, all other kernels by their bytes.

    A pass of a layer takes its flops over the reached flop/s, its bytes over the reached bandwidth, and one launch. A
    backward pass counts as two forward passes. The weight gradient has one third of the products with weights.
    """

    restoring = 0.0
    embedding = NOTHING

    def __init__(self, plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> None:
        self.plan, self.machine, self.efficiency = plan, machine, efficiency

    @cached_property
    def block(self) -> BlockTimes:
        plan, shape = self.plan, self.plan.shape.block()
        sparse = plan.system.sparse
        forward = self._pass(shape.flops, plan.kernels.moved, sparse=sparse)
        return self._times(forward, shape.deferred, sparse=sparse)

    @cached_property
    def head(self) -> BlockTimes:
        """Norm, language head and loss. Logits are written and read in half precision, then in full for the loss."""
        plan, shape = self.plan, self.plan.shape.head()
        return self._times(self._pass(shape.flops, LOGITS * plan.kernels.logits), shape.deferred)

    def _times(self, forward: float, deferred: float, *, sparse: bool = False) -> BlockTimes:
        weight = self._products(deferred, sparse=sparse) + self.efficiency.launch
        return BlockTimes(forward, 2 * forward - weight, weight)

    def _pass(self, flops: float, moved: float, *, sparse: bool = False) -> float:
        seconds = self._products(flops, sparse=sparse) + self.efficiency.launch
        if self.efficiency.traffic:
            seconds += self.plan.microbatch * moved / (self.machine.memory_bandwidth * self.efficiency.traffic)
        return seconds

    def _products(self, flops: float, *, sparse: bool) -> float:
        """Seconds of products with `flops` per sequence, divided over the ranks of a split layer."""
        rate = self.machine.best_product("float16") * reached_share(self.plan, self.efficiency, sparse=sparse)
        return self.plan.microbatch * flops / self.plan.grid.tensor / rate


class GenerationKernels:
    """Every kernel of a block by its shape, with software of one generation.

    The efficiency gives the constant of large products, and the shares of links.
    """

    def __init__(
        self, plan: SimulationPlan, machine: Machine, efficiency: Efficiency, generation: SoftwareGeneration
    ) -> None:
        self.restoring = generation.recompute_host
        self._dense = self._weights = self._kernels(plan, machine, efficiency, generation, sparse=False)
        if plan.system.sparse:
            self._weights = self._kernels(plan, machine, efficiency, generation, sparse=True)

    @staticmethod
    def _kernels(
        plan: SimulationPlan,
        machine: Machine,
        efficiency: Efficiency,
        generation: SoftwareGeneration,
        *,
        sparse: bool,
    ) -> BlockKernels:
        software = replace(
            generation,
            products={machine.family: reached_share(plan, efficiency, sparse=sparse)},
            within=efficiency.within,
            between=efficiency.network,
            collective=efficiency.collective,
            hop=efficiency.hop,
        )
        setup = TrainingSetup(
            plan.shape,
            machine,
            software,
            None,
            plan.grid.tensor,
            1,
            plan.grid.data,
            1,
            plan.microbatch,
            plan.batch,
            precision="float16",
            attention=generation.attention,
        )
        return BlockKernels(setup)

    @cached_property
    def block(self) -> BlockTimes:
        return self._dense.computation(self._weights.weights)

    @cached_property
    def head(self) -> BlockTimes:
        return self._dense.head

    @cached_property
    def embedding(self) -> BlockTimes:
        return self._dense.embedding
