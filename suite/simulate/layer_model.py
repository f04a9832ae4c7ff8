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
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Chunk, WeightPolicy
from suite.core.trace import COPY, MESSAGE, PREDICT, RECOMPUTE
from suite.memory import Layout
from suite.memory.budget import Budget
from suite.memory.stage_budget import stage_budget
from suite.simulate.block_model import Modelled
from suite.simulate.cost.efficiency import Stack
from suite.simulate.network.machine import Machine
from suite.simulate.network.network import ring_volume
from suite.simulate.policy_overheads import PolicyOverheads, counting_interval, policy_overheads
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel as Wires
from suite.simulate.worker import simulate
from suite.weights import Latest
from suite.workload.pipedream_split import Rates
from suite.workload.split import Split, divide
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
        rates: Rates of the profile for split="pipedream".
    """

    shape: Network
    system: Modelled
    grid: Grid
    batch: int
    microbatch: int
    layout: Callable[..., Layout]
    moments: tuple[str, ...]
    policy: WeightPolicy = field(default_factory=Latest)
    update_interval: int | None = None
    half: str | None = None
    split: str | Split = "pipedream"
    rates: Rates | None = None

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
    def ranges(self) -> Split:
        if isinstance(self.split, str):
            return divide(self.shape, self.grid.inter, self.split, self.rates)
        return self.split

    @cached_property
    def overheads(self) -> tuple[PolicyOverheads, ...]:
        """Policy overheads of each stage."""
        interval = counting_interval(self.microbatches, self.update_interval, self.grid.inter)
        return policy_overheads(self.policy, self.system.schedule, self.grid.inter, interval)

    @property
    def deepest(self) -> int:
        """Largest number of stages."""
        return len(self.shapes)

    def entries(self, stage: int) -> int:
        """Parameters of a rank of `stage`; both ends hold a tied matrix."""
        return held_entries(self.shapes[index] for index in self.ranges[stage])

    def states(self, stage: int) -> Layout:
        """Model states without pruning.

        A mask would also make steps and reductions cheaper, and LayerCost does not model this.
        """
        return self.layout(entries=self.entries(stage), moments=self.moments, dtype="float32", half=self.half)

    def microbatch_memory(self, stage: int) -> MicrobatchMemory:
        """Bytes of one microbatch, without activation checkpoints.

        LayerCost does not model the recomputation that checkpoints require.
        """
        return microbatch_memory(
            self.shapes, self.ranges, stage, self.microbatch, again=self.overheads[stage].recomputes
        )

    def budget(self, stage: int) -> Budget:
        """Peak bytes of one rank of `stage`."""
        return stage_budget(
            self.states(stage),
            self.microbatch_memory(stage),
            self.system.schedule,
            self.grid.place(self.grid.rank(data=0, inter=stage)),
            self.interval,
            extra_versions=self.overheads[stage].extra_versions,
            reducing=0,  # a ring reduces in place; the engine's pairwise exchange is not what is modelled
            overlaps_step=False,
            scratch_stays=False,  # the layouts are the engine's, which frees what a step needed
        )

    @property
    def peak(self) -> int:
        """Peak bytes of the fullest rank."""
        return max(self.budget(stage).peak for stage in range(self.grid.inter))

    def versions(self) -> int:
        """Bytes of all weight versions in memory at once, on the stage that holds most."""
        copies = [1 + overheads.extra_versions for overheads in self.overheads]
        return max(count * self.states(stage).read.bytes for stage, count in enumerate(copies))

    def seconds(self, found: Simulation) -> float:
        """Seconds per batch of a full pipeline.

        They are the makespan of a flush, or one period per update of a stream.
        """
        if self.update_interval is None:
            return found.makespan
        return found.period * self.microbatches / self.update_interval


class LayerCost:
    """Cost model of `plan` on `machine` with `stack`, in seconds and bytes of one rank.

    A pass of a layer takes its flops over the rate of products, its bytes over the rate of other kernels, and one
    launch. A forward pass writes its saved activations and its output, and reads as much. A backward pass takes twice
    as long.
    """

    def __init__(self, plan: LayerPlan, machine: Machine, stack: Stack) -> None:
        self.plan, self.machine, self.stack = plan, machine, stack
        self.memory = machine.memory_bandwidth * (stack.traffic or 1.0)
        self.rate = machine.memory_bandwidth * (stack.states or stack.traffic or 1.0)  # of steps and predictions
        stages = range(plan.grid.inter)
        self.forward = [self._forward(stage) for stage in stages]
        self.backward = [self._backward(stage) for stage in stages]
        ends = [plan.shapes[layer_range[-1]].output for layer_range in plan.ranges]
        self.sizes = [plan.microbatch * size for size in ends]

    def compute(self, op: Op) -> float:
        return self.backward[op.stage] if op.kind is Kind.BACKWARD else self.forward[op.stage]

    def message(self, op: Op) -> int:
        """Bytes of a message: an activation forward, its gradient backward."""
        return self.sizes[op.stage - 1] if op.kind is Kind.BACKWARD else self.sizes[op.stage]

    def update(self, stage: int) -> Sequence[Chunk]:
        plan, layout = self.plan, self.plan.states(stage)
        reduced = layout["half_gradient" if plan.half else "gradient"].bytes
        seconds = self.step(stage) + plan.overheads[stage].copies * self.copy(stage)
        return (Chunk(round(plan.system.allreduces_per_update * ring_volume(reduced, plan.grid.data)), seconds),)

    def parts(self, op: Op) -> Mapping[str, float]:
        """Seconds of `op` by category, without its pass or step."""
        overheads = self.plan.overheads[op.stage]
        if op.kind is Kind.UPDATE:
            return {COPY: overheads.copies * self.copy(op.stage)}
        back = op.kind is Kind.BACKWARD
        return {
            MESSAGE: self._messages(op.stage),
            PREDICT: (overheads.backward if back else overheads.forward) * self.prediction(op.stage),
            RECOMPUTE: self.layers(op.stage) if back and overheads.recomputes else 0.0,
        }

    # -- passes ------------------------------------------------------------------------------------------------------

    def layers(self, stage: int) -> float:
        """Seconds of one forward pass of a stage's layers for one microbatch."""
        plan, stack = self.plan, self.stack
        reached = stack.products * stack.relative.get(plan.system.name, 1.0)
        reached *= stack.kernels.get(type(plan.shape).__name__, 1.0)
        products = reached * self.machine.peak_of(plan.half or "float32")
        seconds = 0.0
        for index in plan.ranges[stage]:
            layer = plan.shapes[index]
            seconds += plan.microbatch * layer.flops / products + stack.launch
            if stack.traffic:
                seconds += plan.microbatch * 2 * (layer.saved + layer.output) / self.memory
        return seconds

    def _forward(self, stage: int) -> float:
        return self.layers(stage) + self.plan.overheads[stage].forward * self.prediction(stage) + self._messages(stage)

    def _backward(self, stage: int) -> float:
        overheads = self.plan.overheads[stage]
        passes = 3 if overheads.recomputes else 2
        return passes * self.layers(stage) + overheads.backward * self.prediction(stage) + self._messages(stage)

    def _messages(self, stage: int) -> float:
        """Messages of a pass: each pass receives from one side and sends to the other; the ends have one message."""
        last = self.plan.grid.inter - 1
        return self.stack.message * ((stage > 0) + (stage < last))

    # -- weights -----------------------------------------------------------------------------------------------------

    def step(self, stage: int) -> float:
        """Seconds of an optimizer step.

        A step reads gradient and weights and writes the weights. It reads and writes each moment. In mixed precision
        it also reads the half-precision gradient and writes the half-precision weights.
        """
        entries = self.plan.entries(stage)
        moved = (3 + 2 * len(self.plan.moments)) * FULL + (2 * 2 if self.plan.half else 0)
        return entries * moved / self.rate

    def prediction(self, stage: int) -> float:
        """Seconds of a prediction: it reads weights and moments, and writes weights in the type of the passes."""
        moved = (1 + len(self.plan.moments)) * FULL + (2 if self.plan.half else FULL)
        return self.plan.entries(stage) * moved / self.rate

    def copy(self, stage: int) -> float:
        """Seconds to copy one version of the weights."""
        return 2 * self.plan.states(stage).read.bytes / self.rate


def run(plan: LayerPlan, machine: Machine, stack: Stack, *, symmetric: bool = True, traced: bool = False) -> Simulation:
    """Simulate one flush interval of `plan` in virtual time."""
    system = plan.system
    wires = Wires.of(
        machine,
        stack,
        plan.grid.size,
        blocking=system.blocking_sends,
        direct=system.device_initiated,
        apart=system.sync_before_update,
    )
    cost = LayerCost(plan, machine, stack)
    return simulate(system.schedule, plan.grid, plan.interval, cost, wires, symmetric=symmetric, traced=traced)
