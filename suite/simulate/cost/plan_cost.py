"""Cost model of a plan: passes of blocks, embedding and head, messages, compression, reductions and steps.

suite.simulate.cost.plan_kernels gives the kernels. A backward pass with recomputation also repeats the forward pass of
its blocks. The weight gradient of a split backward pass has the products of weight gradients and the compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.core.grid import Grid
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, Kind, Op
from suite.core.protocols import Chunk
from suite.core.trace import COMPRESS, EXPAND, MESSAGE, RECOMPUTE, TENSOR_REDUCE, TIE
from suite.memory.layout import Layout
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.cost.plan_kernels import kernels_of
from suite.simulate.network.machine import Link, Machine
from suite.simulate.network.network import ring_seconds, ring_volume
from suite.workload import Transformer

HALF = 2  # bytes
FETCHED = 12  # bytes per parameter that an offloaded step moves each way: full-precision weight and two moments
STEPPED = 36  # bytes per parameter that a step in device memory reads and writes


class PlanCost:
    """Cost model of `plan` on `machine` with `efficiency`, in seconds and bytes of one rank."""

    def __init__(self, plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> None:
        self.plan, self.machine, self.efficiency = plan, machine, efficiency
        self.kernels = kernels_of(plan, machine, efficiency)
        self.itemized: dict[tuple[int, Kind], dict[str, float]] = {}  # what `parts` has found
        self.forward = [self._pass(stage, backward=False) for stage in range(len(plan.stages))]
        self.backward = [self._pass(stage, backward=True) for stage in range(len(plan.stages))]
        self.weight = [self._weight(stage) for stage in range(len(plan.stages))]
        whole = round(plan.microbatch * plan.kernels.boundary)
        self.size = plan.message  # of an activation
        self.back = plan.message if plan.system.scatter_messages == "both" else whole  # of its gradient

    def compute(self, op: Op) -> float:
        if op.kind is Kind.WEIGHT:
            return self.weight[op.stage]
        if op.kind is Kind.INPUT:
            return self.backward[op.stage] - self.weight[op.stage]
        return self.backward[op.stage] if op.kind is Kind.BACKWARD else self.forward[op.stage]

    def message(self, op: Op) -> int:
        return self.back if op.kind in SENDS_GRADIENT else self.size

    def parts(self, op: Op) -> Mapping[str, float]:
        """Seconds of `op` by category, without its pass or step.

        Gradients of an embedding that travel with those of a data-parallel group belong to that reduction.
        """
        key = op.stage, op.kind
        if key not in self.itemized:
            rank = self.plan.places[0].rank_of(op.stage)
            self.itemized[key] = self._of_update(rank) if op.kind is Kind.UPDATE else self._of_pass(*key)
        return self.itemized[key]

    def _of_update(self, rank: int) -> dict[str, float]:
        layout = self.plan.layout(rank)
        expands = _compresses(layout) and layout["master"].home != "host"
        return {TIE: self._tie(rank), EXPAND: HALF * layout["half"].entries / self._traffic() if expands else 0.0}

    def _of_pass(self, stage: int, kind: Kind) -> dict[str, float]:
        plan, blocks, backward = self.plan, self.plan.stages[stage].blocks, kind in SENDS_GRADIENT
        compresses = kind in COMPLETES_MICROBATCH and self._compresses(stage)
        if kind is Kind.WEIGHT:
            return {COMPRESS: self._compression(stage) if compresses else 0.0}
        again = plan.recomputes and backward
        return {
            MESSAGE: self._messages(stage) * self.efficiency.message,
            COMPRESS: self._compression(stage) if compresses else 0.0,
            TENSOR_REDUCE: blocks * (1 + again) * self.sums(),
            RECOMPUTE: blocks * again * self.again(),
        }

    def _compresses(self, stage: int) -> bool:
        return _compresses(self.plan.layout(self.plan.places[0].rank_of(stage)))

    def _compression(self, stage: int) -> float:
        """Seconds to compress the gradients of a stage."""
        return self.efficiency.compress * self.plan.entries_of_stage(stage)

    # -- passes ------------------------------------------------------------------------------------------------------

    def _pass(self, stage: int, *, backward: bool) -> float:
        plan, model_part, kernels = self.plan, self.plan.stages[stage], self.kernels
        again = plan.recomputes
        # a backward pass has as many sums over the ranks of a split layer as a forward pass
        seconds = model_part.blocks * self.sums()
        if backward:
            seconds += model_part.blocks * (kernels.block.backward + again * (self.again() + self.sums()))
        else:
            seconds += model_part.blocks * kernels.block.forward
        if model_part.head:
            seconds += kernels.head.backward if backward else kernels.head.forward
        if model_part.embedding:
            seconds += kernels.embedding.backward if backward else kernels.embedding.forward
        if backward and self._compresses(stage):
            seconds += self._compression(stage)
        return seconds + self._messages(stage) * self.efficiency.message

    def _weight(self, stage: int) -> float:
        """Seconds of the weight gradients of a stage for one microbatch, as a part of its backward pass.

        The input gradient has the other products, the element-wise kernels, the sums over the ranks of a split layer,
        recomputation and messages.
        """
        model_part = self.plan.stages[stage]
        seconds = model_part.blocks * self.kernels.block.weight
        if model_part.head:
            seconds += self.kernels.head.weight
        return seconds + (self._compression(stage) if self._compresses(stage) else 0.0)

    def _messages(self, stage: int) -> int:
        """Messages of a pass: it receives from one side and sends to the other, where another rank holds that stage."""
        place = self.plan.places[0]
        others = [other for other in (stage - 1, stage + 1) if 0 <= other < place.stages]
        return sum(place.rank_of(other) != place.rank_of(stage) for other in others)

    def again(self) -> float:
        """Seconds in which one block is computed again."""
        return self.kernels.block.forward + self.kernels.restoring

    def sums(self) -> float:
        """Seconds of the all-reduces over the ranks of a split block in one pass (Shoeybi et al. 2020).

        They add the outputs of attention and MLP, or the gradients of their inputs.
        """
        plan, tensor = self.plan, self.plan.grid.tensor
        if tensor == 1:
            return 0.0
        return 2 * ring_seconds(plan.microbatch * plan.kernels.boundary, tensor, self.tensor_link())

    def tensor_link(self) -> Link:
        """Link over which the ranks of one layer reduce.

        It is the link inside a node if no group spans two nodes. A ring with several ranks on a node leaves it through
        all adapters that the efficiency names.
        """
        machine, efficiency = self.machine, self.efficiency
        if machine.devices_per_node % self.plan.grid.tensor == 0:
            return Link(efficiency.hop, machine.within.bandwidth * efficiency.within)
        adapters = min(efficiency.adapters, machine.adapters)
        return Link(efficiency.hop, machine.between.bandwidth * adapters * efficiency.network)

    # -- updates -----------------------------------------------------------------------------------------------------

    def update(self, rank: int) -> Sequence[Chunk]:
        plan, system = self.plan, self.plan.system
        layout = plan.layout(rank)
        reduced = layout["half_gradient"].bytes
        stepped = layout["master"].entries
        seconds = self.step(rank)
        volume = system.allreduces_per_update * ring_volume(reduced, plan.grid.data)
        if plan.grid.data > 1:
            volume += self._exchanged(rank)  # over the column's adapters
        else:  # no column reduces here
            seconds += self._tie(rank)
        if not (system.bucket_numel and system.buckets_per_reduction):
            return (Chunk(round(volume), seconds),)
        chunks = -(-stepped // (system.bucket_numel * system.buckets_per_reduction))
        return (Chunk(round(volume / chunks), seconds / chunks),) * chunks

    def _exchanged(self, rank: int) -> float:
        """Bytes of the shared embedding's gradient that the two ends of a pipeline add, if two ranks hold them."""
        plan, model_part = self.plan, self.plan.parts(rank)
        apart = plan.system.tied_embeddings and plan.shape.tied and model_part.embedding != model_part.head
        return HALF * plan.shape.head().tied / plan.grid.tensor if apart else 0.0

    def _tie(self, rank: int) -> float:
        """Seconds in which the ends of a pipeline add this gradient, with one replica."""
        if self.plan.grid.data > 1:
            return 0.0
        return self._exchanged(rank) / self.machine.link(0, self.plan.grid.size - 1).bandwidth

    def _traffic(self) -> float:
        """Bytes per second of device memory that element-wise kernels move."""
        return self.machine.memory_bandwidth * (self.efficiency.traffic or 1.0)

    def step(self, rank: int) -> float:
        """Seconds of the optimizer step: over the host link for offloaded states, otherwise in device memory."""
        layout = self.plan.layout(rank)
        entries = layout["master"].entries
        if layout["master"].home == "host":
            return 2 * FETCHED * entries / (self.machine.host.bandwidth * self.efficiency.host)
        expanded = HALF * layout["half"].entries  # half-precision weights are written whole
        traffic = STEPPED * entries + expanded
        return traffic / (self.machine.memory_bandwidth * (self.efficiency.traffic or 1.0))


def _compresses(layout: Layout) -> bool:
    return "index" in {state.name for state in layout}


def of(
    *,
    machine: Machine,
    efficiency: Efficiency,
    system: SystemModel,
    shape: Transformer,
    grid: Grid,
    batch: int,
    microbatch: int,
    split: str = "even",
) -> PlanCost:
    """Cost model of a config's own model and grid (cost=analytic)."""
    return PlanCost(SimulationPlan(shape, system, grid, batch, microbatch, split), machine, efficiency)
