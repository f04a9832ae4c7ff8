"""One training step: passes of all microbatches in the order of the schedule, reductions, and the optimizer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log2

from suite.core.grid import Grid
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op
from suite.core.protocols import Chunk
from suite.core.trace import BACKWARD, FORWARD, GATHER, RECOMPUTE, REDUCE, STEP, TENSOR_REDUCE, breakdown
from suite.schedule.one_f_one_b import OneFOneB
from suite.simulate.network.machine import Link
from suite.simulate.operations.block import NOTHING, BlockKernels, BlockTimes
from suite.simulate.operations.collectives import SpacedRanks, all_reduce_seconds, gather_seconds, message_seconds
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.states import fullest_device, parameters, shard_ranks
from suite.simulate.simulation import Simulation
from suite.simulate.worker import NetworkModel, simulate
from suite.workload.flops import per_trained_token

ROUNDS, MOST, LEAST = 8, 128, 4
"""Microbatches that are simulated: in pipeline sizes, at most, and at least in pipeline sizes. The steady state of more
is extrapolated."""
BUCKETS = 16  # buckets of a reduction; the last one is never hidden
FETCHED = 12  # bytes per parameter that an offloaded step moves each way: full-precision weight and two moments
STEP_KERNELS = 4.0  # kernels of a step in device memory


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Result of a simulated step.

    Attributes:
        seconds: Seconds of the step.
        memory: Bytes by kind of the fullest device.
    """

    setup: TrainingSetup
    seconds: float
    memory: Mapping[str, float]

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second and device."""
        return self.setup.batch * self.setup.model.sequence / self.seconds / self.setup.devices

    @property
    def utilization(self) -> float:
        """Share of the devices' peak by the usual count of flops (suite.workload.flops.per_trained_token)."""
        setup = self.setup
        return self.tokens_per_second * per_trained_token(setup.model) / setup.machine.peak_of(setup.precision)

    @property
    def peak_memory(self) -> float:
        return fsum(self.memory.values())

    @property
    def fits(self) -> bool:
        return self.peak_memory <= self.setup.machine.memory


class StageCosts:
    """Cost model of a setup for the pipeline worker (suite.core.protocols.CostModel)."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup, self.kernels = setup, BlockKernels(setup)
        self.waits = BlockTimes(0.0, 0.0, 0.0)  # of the passes of all stages, for sharded weights and gradients
        self.passes = [self._stage(stage) for stage in range(setup.stages)]
        # tensor-parallel ranks send slices of an activation, and gather them inside the node (arXiv 2104.04473, 4.1)
        self.size = round(self.kernels.activation / setup.tensor)

    @property
    def neighbours(self) -> int:
        """Devices between neighbouring pipeline ranks."""
        return self.setup.tensor * self.setup.context * self.setup.data

    # -- stages ------------------------------------------------------------------------------------------------------

    def _stage(self, stage: int) -> BlockTimes:
        setup, kernels, last = self.setup, self.kernels, self.setup.stages - 1
        total = self._sharded(kernels.block, setup.blocks[stage]) if setup.blocks[stage] else NOTHING
        if setup.vocabulary == "spread":
            share = 1 / setup.stages
            return total + kernels.head * share + kernels.embedding * share
        if stage == 0:
            total += kernels.embedding
        if stage == last:
            total += kernels.head
        return total

    def _sharded(self, block: BlockTimes, blocks: float) -> BlockTimes:
        """Seconds of blocks, in which the weights of the next block are gathered during the current one."""
        setup = self.setup
        if setup.sharding != "parameters":
            return block * blocks
        entries = setup.model.block_parameters / setup.tensor
        group, ranks = self.replicas(shard_ranks(setup)), shard_ranks(setup)
        if ranks == 1:
            return block * blocks
        gather = gather_seconds(setup.entry_bytes * entries, group, setup.machine, setup.generation)
        width = max(setup.entry_bytes, setup.generation.sharded_gradient_bytes)
        scatter = gather_seconds(width * entries, group, setup.machine, setup.generation)
        behind = scatter + (gather if setup.reshard else 0.0)
        forward = self._beside(block.forward, gather) * blocks
        backward = self._beside(block.backward, behind) * blocks
        exposed = (gather + scatter) if setup.pipeline == 1 else 0.0
        passes = BlockTimes(
            forward + exposed / 2, backward - block.weight * blocks + exposed / 2, block.weight * blocks
        )
        self.waits += passes + block * -blocks
        return passes

    def _beside(self, computing: float, communicating: float) -> float:
        """Seconds of kernels and a communication at the same time, which share memory bandwidth and compute units."""
        return max(computing, communicating) + self.setup.generation.contention * min(computing, communicating)

    def replicas(self, size: int) -> SpacedRanks:
        """Group of `size` data-parallel ranks."""
        return SpacedRanks(size, self.setup.tensor)

    # -- cost model --------------------------------------------------------------------------------------------------

    def compute(self, op: Op) -> float:
        passes = self.passes[op.stage]
        if op.kind is Kind.WEIGHT:
            return passes.weight
        if op.kind is Kind.INPUT:
            return passes.input
        return passes.backward if op.kind is Kind.BACKWARD else passes.forward

    def message(self, op: Op) -> int:
        del op
        return self.size

    def parts(self, op: Op) -> Mapping[str, float]:
        return {} if op.kind in (Kind.UPDATE, Kind.WEIGHT) else self.parts_of_pass(op.stage, op.kind)

    def parts_of_pass(self, stage: int, kind: Kind) -> dict[str, float]:
        """Seconds of tensor-parallel communication and of recomputation in a forward pass or an input gradient."""
        blocks, sums, backward = self.setup.blocks[stage], self.kernels.tensor_parallel, kind in SENDS_GRADIENT
        again, share = self.kernels.recomputed if backward else (0.0, 0.0)
        return {TENSOR_REDUCE: blocks * (sums[backward] + share * sums[0]), RECOMPUTE: blocks * again}

    def update(self, rank: int) -> Sequence[Chunk]:
        return (Chunk(0, self.reduction(rank) + self.step(rank)),)

    # -- updates -----------------------------------------------------------------------------------------------------

    def reduction(self, rank: int) -> float:
        """Seconds of gradient reduction, and of gathering updated weights, that no pass hides."""
        setup = self.setup
        ranks = setup.data * setup.context
        tied = self._tied(rank)
        if ranks == 1:
            return tied
        entries, generation, machine = parameters(setup, rank), setup.generation, setup.machine
        group = self.replicas(ranks)
        if setup.sharding == "parameters":
            outside = setup.model.embedding_parameters + setup.model.head_parameters
            copies = ranks // shard_ranks(setup)
            sums = gather_seconds(4 * outside / setup.tensor / setup.stages, group, machine, generation)
            if copies > 1:  # shards of several groups are added
                across = SpacedRanks(copies, setup.tensor * shard_ranks(setup))
                added = all_reduce_seconds(4 * entries / shard_ranks(setup), across, machine, generation)
                sums += self._behind(added, rank)
            return sums + tied
        gradients = self.reduced * entries
        if setup.sharding == "none":
            reduced, gathered = all_reduce_seconds(gradients, group, machine, generation), 0.0
        else:
            shards = self.replicas(shard_ranks(setup))
            reduced = gather_seconds(gradients, shards, machine, generation)
            gathered = gather_seconds(setup.entry_bytes * entries, shards, machine, generation)
            gathered += generation.shard_call * shards.size * (shards.size > shards.per_node(machine))
            if ranks > shards.size:  # the shards of several groups are added
                across = SpacedRanks(ranks // shards.size, setup.tensor * shards.size)
                reduced += all_reduce_seconds(gradients / shards.size, across, machine, generation)
        if generation.reduction_overlap:
            reduced, gathered = self._behind(reduced, rank), self._behind(gathered, rank)
        return reduced + gathered + tied

    def _behind(self, seconds: float, rank: int) -> float:
        """What remains of a reduction in buckets during the last backward pass, or of a gathering in the first pass."""
        passes = [self.passes[stage] for stage in self.setup.places[rank].held_stages]
        hidden = min(fsum(each.backward for each in passes), seconds * (1 - 1 / BUCKETS))
        return seconds - hidden * (1 - self.setup.generation.contention)

    @property
    def reduced(self) -> int:
        """Bytes per parameter in which gradients are reduced."""
        if self.setup.precision == "float16":
            return 2
        return max(self.setup.entry_bytes, self.setup.generation.reduced_bytes)

    def _tied(self, rank: int) -> float:
        """Seconds in which the ends of a pipeline add the gradients of a shared embedding."""
        setup = self.setup
        ends = (setup.places[rank].rank_of(0), setup.places[rank].rank_of(setup.stages - 1))
        if not setup.model.tied or ends[0] == ends[1] or rank not in ends or setup.vocabulary == "spread":
            return 0.0
        size = self.reduced * setup.model.hidden * setup.model.vocabulary / setup.tensor
        group = SpacedRanks(2, self.neighbours * (setup.pipeline - 1))
        return all_reduce_seconds(size, group, setup.machine, setup.generation)

    def step(self, rank: int) -> float:
        """Seconds of the optimizer step."""
        setup = self.setup
        entries = parameters(setup, rank)
        if setup.sharding != "none":
            entries /= shard_ranks(setup)
        if setup.offload:
            return 2 * FETCHED * entries / (setup.machine.host.bandwidth * setup.generation.between)
        moved = setup.generation.step_bytes * entries
        return self.kernels.device.elementwise(moved, STEP_KERNELS)


def slowest_of_nodes(setup: TrainingSetup) -> float:
    """Factor on the seconds of a step, which ends with the slowest of its nodes."""
    return 1 + setup.generation.jitter * log2(setup.machine.nodes(setup.devices))


class TrainingSimulator:
    """Simulation of one step of a setup."""

    def __init__(self, setup: TrainingSetup) -> None:
        self.setup, self.costs = setup, StageCosts(setup)

    def run(self) -> TrainingStep:
        """Seconds and memory of a step."""
        setup = self.setup
        seconds = self._pipeline() if setup.pipeline > 1 else self._replica()
        return TrainingStep(setup, seconds * slowest_of_nodes(setup), fullest_device(setup))

    def _replica(self) -> float:
        """Step without a pipeline: the microbatches follow each other."""
        one = self.costs.passes[0]
        return self.setup.microbatches * (one.forward + one.backward) + self.costs.update(0)[0].step

    def _pipeline(self) -> float:
        """Step of a pipeline. Many microbatches repeat a steady state, whose time is extrapolated."""
        short, periods = self._periods()
        makespan = self.simulation(short).makespan
        if not periods:
            return makespan
        return makespan + periods * (makespan - self.simulation(short - self.setup.pipeline).makespan)

    def _periods(self) -> tuple[int, int]:
        """Microbatches that are simulated, and the periods of the steady state that follow."""
        microbatches, ranks = self.setup.microbatches, self.setup.pipeline
        limit = max(LEAST * ranks, min(ROUNDS * ranks, MOST))
        periods = max(0, -(-(microbatches - limit) // ranks))
        return microbatches - periods * ranks, periods

    def breakdown(self) -> dict[str, float]:
        """Seconds of the step by category of suite.core.trace, mean over the pipeline ranks; they sum to the step."""
        setup, costs, ranks = self.setup, self.costs, self.setup.pipeline
        short, periods = self._periods()
        found = self._traced(short)
        before = self._traced(short - ranks) if periods else {}
        found = {name: value + periods * (value - before.get(name, 0.0)) for name, value in found.items()}
        reduced = fsum(costs.reduction(rank) for rank in range(ranks)) / ranks
        waits = costs.waits * (setup.microbatches / ranks)
        moved = {STEP: reduced, FORWARD: waits.forward, BACKWARD: waits.input}
        found = {name: value - moved.get(name, 0.0) for name, value in found.items()}
        found |= {REDUCE: reduced, GATHER: waits.forward + waits.input}
        return {name: value * slowest_of_nodes(setup) for name, value in found.items()}

    def _traced(self, microbatches: int) -> dict[str, float]:
        return breakdown(self.simulation(microbatches, traced=True).trace, Grid(inter=self.setup.pipeline))

    def simulation(self, microbatches: int, *, traced: bool = False) -> Simulation:
        """Simulated pipeline with this number of microbatches. Without a schedule, they follow each other."""
        setup, costs = self.setup, self.costs
        stride = costs.neighbours
        latency, bandwidth = message_seconds(costs.size, stride, setup.machine, setup.generation)
        link = Link(latency, bandwidth)
        network = NetworkModel(
            lambda first, second: link, blocking=setup.generation.blocking_messages, apart=setup.waits_for_all
        )
        interval, grid = FlushInterval(0, microbatches, None, 0), Grid(inter=setup.pipeline)
        return simulate(setup.schedule or OneFOneB(), grid, interval, costs, network, traced=traced)


def simulate_step(setup: TrainingSetup) -> TrainingStep:
    """Seconds and memory of one training step. Raises InvalidRequest for a schedule that refuses the pipeline."""
    return TrainingSimulator(setup).run()
