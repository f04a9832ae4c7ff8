"""Cost model of a plan: the passes of suite.simulate.operations, and what the compared systems add to them.

They are handling of messages, compression of gradients (SAMO III-C), reductions over shared adapters in buckets (AxoNN
V-C), the gradients of a shared embedding, and steps of offloaded or compressed states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.core.grid import Grid
from suite.core.op import COMPLETES_MICROBATCH, SENDS_GRADIENT, Kind, Op
from suite.core.protocols import Chunk
from suite.core.trace import COMPRESS, EXPAND, MESSAGE, TIE
from suite.memory.layout import Layout
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine
from suite.simulate.network.network import ring_volume
from suite.simulate.operations.block import BlockTimes
from suite.simulate.operations.step import FETCHED, STEP_KERNELS, StageCosts
from suite.workload import Transformer

HALF = 2  # bytes


class PlanCost(StageCosts):
    """Cost model of `plan` on `machine` with `efficiency`, in seconds and bytes of one rank."""

    def __init__(self, plan: SimulationPlan, machine: Machine, efficiency: Efficiency) -> None:
        system = plan.system
        super().__init__(plan.setup(machine, efficiency.software(machine.family, system.name, sparse=system.sparse)))
        self.plan, self.machine, self.efficiency = plan, machine, efficiency
        self.itemized: dict[tuple[int, Kind], dict[str, float]] = {}  # what `parts` has found
        self.passes = [times + self._beside_passes(stage) for stage, times in enumerate(self.passes)]
        self.size = plan.message  # of an activation
        self.back = plan.message if system.scatter_messages == "both" else plan.boundary  # of its gradient

    @property
    def neighbours(self) -> int:
        return self.plan.grid.tensor

    def message(self, op: Op) -> int:
        return self.back if op.kind in SENDS_GRADIENT else self.size

    def parts(self, op: Op) -> Mapping[str, float]:
        """Seconds of `op` by category, without its pass or step."""
        key = op.stage, op.kind
        if key not in self.itemized:
            rank = self.plan.places[0].rank_of(op.stage)
            self.itemized[key] = self._of_update(rank) if op.kind is Kind.UPDATE else self._of_pass(*key)
        return self.itemized[key]

    def _of_update(self, rank: int) -> dict[str, float]:
        return {TIE: self._tied(rank), EXPAND: self._expanded(rank) / self.kernels.device.traffic}

    def _of_pass(self, stage: int, kind: Kind) -> dict[str, float]:
        beside = self._beside_passes(stage)
        compressing = {COMPRESS: beside.weight if kind in COMPLETES_MICROBATCH else 0.0}
        if kind is Kind.WEIGHT:
            return compressing
        return {MESSAGE: beside.forward, **compressing, **self.parts_of_pass(stage, kind)}

    def _beside_passes(self, stage: int) -> BlockTimes:
        """Seconds of handling messages, and of compressing the gradients of a stage.

        A pass receives from one side and sends to the other, where another rank holds that stage.
        """
        plan, place = self.plan, self.plan.places[0]
        others = [other for other in (stage - 1, stage + 1) if 0 <= other < place.stages]
        messages = sum(place.rank_of(other) != place.rank_of(stage) for other in others) * self.efficiency.message
        compresses = _compresses(plan.layout(place.rank_of(stage)))
        return BlockTimes(messages, messages, self.efficiency.compress * plan.entries(stage) if compresses else 0.0)

    # -- updates -----------------------------------------------------------------------------------------------------

    def update(self, rank: int) -> Sequence[Chunk]:
        plan, system = self.plan, self.plan.system
        layout = plan.layout(rank)
        seconds = self.step(rank) + self._tied(rank)
        volume = system.allreduces_per_update * ring_volume(layout["half_gradient"].bytes, plan.grid.data)
        chunks = 1
        if system.bucket_numel and system.buckets_per_reduction:
            chunks = -(-layout["master"].entries // (system.bucket_numel * system.buckets_per_reduction))
        return (Chunk(round(volume / chunks), seconds / chunks),) * chunks

    def _tied(self, rank: int) -> float:
        return super()._tied(rank) if self.plan.system.tied_embeddings else 0.0

    def _expanded(self, rank: int) -> int:
        """Bytes of the pruned half-precision weights, which a step of compressed states writes too."""
        layout = self.plan.layout(rank)
        pruned = layout["half"].entries - layout["master"].entries
        return HALF * pruned if _compresses(layout) and layout["master"].home != "host" else 0

    def step(self, rank: int) -> float:
        """Seconds of the optimizer step: over the host link for offloaded states, otherwise in device memory."""
        states = self.plan.layout(rank)["master"]
        if states.home == "host":
            return 2 * FETCHED * states.entries / (self.machine.host.bandwidth * self.efficiency.host)
        moved = self.setup.generation.step_bytes * states.entries + self._expanded(rank)
        return self.kernels.device.elementwise(moved, STEP_KERNELS)


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
