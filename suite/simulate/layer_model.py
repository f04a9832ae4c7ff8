"""Simulation of any list of layers: a roofline per layer, and the overheads of the weight policy.

suite.simulate.block_model models GPTs on half-precision kernels, as two papers ran them. This module models every other
network, and pipelines that do not drain. The costs are the same for every system: passes of its layers, recomputed if
its policy requires it; predictions and copies of weights, counted by its policy's ledger, at the memory bandwidth of
the device; and one optimizer step per update. No system is treated by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op, Place
from suite.core.protocols import Chunk, WeightPolicy
from suite.core.trace import COPY, MESSAGE, PREDICT, RECOMPUTE
from suite.memory.budget import Budget
from suite.memory.layout import Layout
from suite.memory.stage_budget import stage_budget
from suite.schedule.placement import homes_of, places
from suite.simulate.block_model import SystemModel
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Machine
from suite.simulate.network.network import ring_volume
from suite.simulate.policy_overheads import PolicyOverheads, counting_interval, policy_overheads
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel as Wires
from suite.simulate.worker import simulate
from suite.weights import Latest
from suite.workload.split import Split, divide_ranks
from suite.workload.stage_memory import MicrobatchMemory, held_entries, microbatch_memory
from suite.workload.transformer import LayerShape, Network

FULL = 4  # bytes of an entry in full precision, which is what a step and a prediction work on
UPDATES = 8  # of a simulated stream, times its stages: the third quarter of them is timed


@dataclass(frozen=True)
class LayerPlan:
    """A network `shape` trained by `system` on `grid`, with `batch` samples in microbatches of `microbatch`.

    Attributes:
        policy: Weight policy.
        update_interval: Microbatches per update and replica of a stream; None for a flush.
        layout, moments: Memory layout and moments of a rank.
        half: Type of passes in mixed precision.
        split: Name of a rule of suite.workload.split, or ranges of layers.
    """

    shape: Network
    system: SystemModel
    grid: Grid
    batch: int
    microbatch: int
    layout: Callable[..., Layout]
    moments: tuple[str, ...]
    policy: WeightPolicy = field(default_factory=Latest)
    update_interval: int | None = None
    half: str | None = None
    split: str | Split = "pipedream"

    def __post_init__(self) -> None:
        if self.grid.tensor > 1:
            raise Unsupported(
                f"grid.tensor={self.grid.tensor} with layers that are simulated one by one",
                rule="this model splits no layer over ranks",
                legal="grid.tensor=1",
            )
        chunk = self.microbatch * self.grid.data
        if self.microbatch < 1 or self.batch < 1 or self.batch % chunk:
            raise InvalidRequest(
                f"a batch of {self.batch} on {self.grid.data} replicas with microbatches of {self.microbatch}",
                rule="replicas * microbatch divides the batch",
                legal=f"a batch of {max(1, self.batch // max(1, chunk)) * max(1, chunk)}",
            )

    @property
    def microbatches(self) -> int:
        """Microbatches of a batch on each replica."""
        return self.batch // (self.microbatch * self.grid.data)

    @cached_property
    def interval(self) -> FlushInterval:
        """Flush interval: a batch, or a stream that fills the pipeline for a while."""
        if self.update_interval is None:
            return FlushInterval(0, self.microbatches, None, 0)
        return FlushInterval(0, self.update_interval * UPDATES * self.grid.inter, self.update_interval, 0)

    @cached_property
    def shapes(self) -> tuple[LayerShape, ...]:
        return self.shape.shapes(2 if self.half else 4)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Place of each pipeline rank of the first replica."""
        return places(self.system.schedule, self.grid.inter, replicas=self.grid.data)

    @cached_property
    def ranges(self) -> Split:
        """Layers of each stage."""
        if isinstance(self.split, str):
            return divide_ranks(self.shape, homes_of(self.system.schedule, self.grid.inter), self.split)
        return self.split

    @cached_property
    def overheads(self) -> tuple[PolicyOverheads, ...]:
        """Policy overheads of each stage."""
        interval = counting_interval(self.microbatches, self.update_interval, self.grid.inter)
        return policy_overheads(self.policy, self.system.schedule, self.grid.inter, interval)

    @property
    def deepest(self) -> int:
        """Largest number of pipeline ranks."""
        return len(self.shapes) * self.grid.inter // self.places[0].stages

    def entries(self, rank: int) -> int:
        """Parameters of pipeline rank `rank`; both ends hold a tied matrix."""
        return sum(self.entries_of_stage(stage) for stage in self.places[rank].held_stages)

    def entries_of_stage(self, stage: int) -> int:
        """Parameters of one stage."""
        return held_entries(self.shapes[index] for index in self.ranges[stage])

    def states(self, rank: int) -> Layout:
        """Model states of pipeline rank `rank`, without pruning.

        A mask would also make steps and reductions cheaper, and LayerCost does not model this.
        """
        return self.layout(entries=self.entries(rank), moments=self.moments, dtype="float32", half=self.half)

    def microbatch_memory(self, stage: int) -> MicrobatchMemory:
        """Bytes of one microbatch, without activation checkpoints.

        LayerCost does not model the recomputation that checkpoints require.
        """
        return microbatch_memory(
            self.shapes, self.ranges, stage, self.microbatch, again=self.overheads[stage].recomputes
        )

    def budget(self, rank: int) -> Budget:
        """Peak bytes of pipeline rank `rank`."""
        place = self.places[rank]
        return stage_budget(
            self.states(rank),
            [self.microbatch_memory(stage) for stage in place.held_stages],
            self.system.schedule,
            place,
            self.interval,
            extra_versions=max(self.overheads[stage].extra_versions for stage in place.held_stages),
            reducing=0,  # a ring reduces in place; the engine's pairwise exchange is not what is modelled
            overlaps_step=False,
            scratch_stays=False,  # the layouts are the engine's, which frees what a step needed
        )

    @property
    def peak(self) -> int:
        """Peak bytes of the fullest rank."""
        return max(self.budget(rank).peak for rank in range(self.grid.inter))

    def versions(self) -> int:
        """Bytes of all weight versions in memory at once, on the rank that holds most."""
        extra = [max(self.overheads[stage].extra_versions for stage in place.held_stages) for place in self.places]
        return max((1 + count) * self.states(rank).read.bytes for rank, count in enumerate(extra))

    def seconds(self, found: Simulation) -> float:
        """Seconds per batch of a full pipeline.

        They are the makespan of a flush, or one period per update of a stream.
        """
        if self.update_interval is None:
            return found.makespan
        return found.period * self.microbatches / self.update_interval


class LayerCost:
    """Cost model of `plan` on `machine` with `efficiency`, in seconds and bytes of one rank.

    A pass of a layer takes its flops over the rate of products, its bytes over the rate of other kernels, and one
    launch. A forward pass writes its saved activations and its output, and reads as much. A backward pass takes twice
    as long. In a split backward pass, a weight gradient has as many flops as the products with weights of the forward
    pass, and a launch for each layer that has such products. The rest belongs to the input gradient.
    """

    def __init__(self, plan: LayerPlan, machine: Machine, efficiency: Efficiency) -> None:
        self.plan, self.machine, self.efficiency = plan, machine, efficiency
        self.memory = machine.memory_bandwidth * (efficiency.traffic or 1.0)
        # rate of steps and predictions
        self.rate = machine.memory_bandwidth * (efficiency.states or efficiency.traffic or 1.0)
        stages = range(len(plan.ranges))
        self.forward = [self._forward(stage) for stage in stages]
        self.backward = [self._backward(stage) for stage in stages]
        self.weight = [self._weight(stage) for stage in stages]
        ends = [plan.shapes[layer_range[-1]].output for layer_range in plan.ranges]
        self.sizes = [plan.microbatch * size for size in ends]

    def compute(self, op: Op) -> float:
        if op.kind is Kind.WEIGHT:
            return self.weight[op.stage]
        if op.kind is Kind.INPUT:
            return self.backward[op.stage] - self.weight[op.stage]
        return self.backward[op.stage] if op.kind is Kind.BACKWARD else self.forward[op.stage]

    def message(self, op: Op) -> int:
        """Bytes of a message: an activation forward, its gradient backward."""
        return self.sizes[op.stage - 1] if op.kind in SENDS_GRADIENT else self.sizes[op.stage]

    def update(self, rank: int) -> Sequence[Chunk]:
        plan, layout = self.plan, self.plan.states(rank)
        reduced = layout["half_gradient" if plan.half else "gradient"].bytes
        seconds = self.step(rank) + self._copies(rank) * self.copy(rank)
        return (Chunk(round(plan.system.allreduces_per_update * ring_volume(reduced, plan.grid.data)), seconds),)

    def parts(self, op: Op) -> Mapping[str, float]:
        """Seconds of `op` by category, without its pass or step."""
        overheads = self.plan.overheads[op.stage]
        if op.kind is Kind.UPDATE:
            rank = self.plan.places[0].rank_of(op.stage)
            return {COPY: self._copies(rank) * self.copy(rank)}
        if op.kind is Kind.WEIGHT:
            return {}
        back = op.kind in SENDS_GRADIENT
        return {
            MESSAGE: self._messages(op.stage),
            PREDICT: (overheads.backward if back else overheads.forward) * self.prediction(op.stage),
            RECOMPUTE: self.layers(op.stage) if back and overheads.recomputes else 0.0,
        }

    # -- passes ------------------------------------------------------------------------------------------------------

    def layers(self, stage: int) -> float:
        """Seconds of one forward pass of a stage's layers for one microbatch."""
        plan, efficiency = self.plan, self.efficiency
        products = self._rate()
        seconds = 0.0
        for index in plan.ranges[stage]:
            layer = plan.shapes[index]
            seconds += plan.microbatch * layer.flops / products + efficiency.launch
            if efficiency.traffic:
                seconds += plan.microbatch * 2 * (layer.saved + layer.output) / self.memory
        return seconds

    def _forward(self, stage: int) -> float:
        return self.layers(stage) + self.plan.overheads[stage].forward * self.prediction(stage) + self._messages(stage)

    def _backward(self, stage: int) -> float:
        overheads = self.plan.overheads[stage]
        passes = 3 if overheads.recomputes else 2
        return passes * self.layers(stage) + overheads.backward * self.prediction(stage) + self._messages(stage)

    def _rate(self) -> float:
        """Rate of products in flop/s."""
        plan, efficiency = self.plan, self.efficiency
        reached = efficiency.products * efficiency.relative.get(plan.system.name, 1.0)
        reached *= efficiency.kernels.get(type(plan.shape).__name__, 1.0)
        return reached * self.machine.best_product(plan.half or "float32")

    def _weight(self, stage: int) -> float:
        """Seconds of the weight gradients of a stage for one microbatch, as a part of its backward pass."""
        deferred = [flops for index in self.plan.ranges[stage] if (flops := self.plan.shapes[index].deferred)]
        return self.plan.microbatch * sum(deferred) / self._rate() + len(deferred) * self.efficiency.launch

    def _messages(self, stage: int) -> float:
        """Seconds for the messages of a pass.

        A pass receives from one side and sends to the other, where another rank holds that stage.
        """
        place = self.plan.places[0]
        others = [other for other in (stage - 1, stage + 1) if 0 <= other < place.stages]
        return self.efficiency.message * sum(place.rank_of(other) != place.rank_of(stage) for other in others)

    # -- weights -----------------------------------------------------------------------------------------------------

    def _copies(self, rank: int) -> float:
        """Copies of the weights per update of a rank. Only a stream, which has one stage per rank, copies weights."""
        return self.plan.overheads[self.plan.places[rank].stage].copies

    def step(self, rank: int) -> float:
        """Seconds of an optimizer step.

        A step reads gradient and weights and writes the weights. It reads and writes each moment. In mixed precision
        it also reads the half-precision gradient and writes the half-precision weights.
        """
        entries = self.plan.entries(rank)
        moved = (3 + 2 * len(self.plan.moments)) * FULL + (2 * 2 if self.plan.half else 0)
        return entries * moved / self.rate

    def prediction(self, stage: int) -> float:
        """Seconds of a prediction: it reads weights and moments, and writes weights in the type of the passes."""
        moved = (1 + len(self.plan.moments)) * FULL + (2 if self.plan.half else FULL)
        return self.plan.entries_of_stage(stage) * moved / self.rate

    def copy(self, rank: int) -> float:
        """Seconds to copy one version of the weights of a rank."""
        return 2 * self.plan.states(rank).read.bytes / self.rate


def run(
    plan: LayerPlan, machine: Machine, efficiency: Efficiency, *, symmetric: bool = True, traced: bool = False
) -> Simulation:
    """Simulate one flush interval of `plan` in virtual time."""
    system = plan.system
    wires = Wires.of(
        machine,
        efficiency,
        plan.grid.size,
        blocking=system.blocking_sends,
        direct=system.device_initiated,
        apart=system.sync_before_update,
    )
    cost = LayerCost(plan, machine, efficiency)
    return simulate(system.schedule, plan.grid, plan.interval, cost, wires, symmetric=symmetric, traced=traced)
