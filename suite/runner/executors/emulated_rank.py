"""Rank of an emulated run: ops are timed sleeps, messages are real.

The worker of real ranks drives the schedule through the same transports; each computation is replaced by a sleep for
the seconds of a cost model. Sleeping ranks do not compete for cores, so sixteen stages run on two cores. The simulator
receives the same schedule, costs and perturbations, so an emulation measures the error of its prediction (law 6).
Messages over MPI need no torch. An asynchronous system streams the batches of a round, as the engine does, and sleeps
for the predictions and copies of its weight policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from suite.comm.p2p.polling import sleep_until, wait_until
from suite.config.executor import EmulatedExecutor, Jitter
from suite.config.run import RunConfig
from suite.core.errors import Unsupported
from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import FlushInterval, Kind, Op, Place, Program, feeds, message_of, needs
from suite.core.protocols import Chunk, CostModel, Schedule, Tensor, Value, World
from suite.core.record import Metric
from suite.core.trace import BACKWARD, REDUCE, STEP, WAIT, Span, Trace, stages_of
from suite.engine.worker import run_program, run_to_end
from suite.schedule.check import check as check_schedule
from suite.schedule.placement import homes_of, is_split, place_of, places
from suite.schedule.static import fixed
from suite.simulate.policy_overheads import PolicyOverheads, policy_overheads

if TYPE_CHECKING:
    from suite.simulate.network.machine import Link

_NO_WAIT = 1.0e-4  # seconds: the message had arrived before a wait shorter than this
_INFINITE_BANDWIDTH = 1.0e18  # bytes/s of a link whose latency is the whole time of a message


# -- plan of an emulation, equal for a rank and for the simulator, which differ in the clock alone ---------------------


@dataclass(frozen=True, slots=True)
class StaticOrder:
    """A schedule in the checker's order, for a transport that cannot receive in any order.

    Attributes:
        homes: Pipeline rank of each stage.
        split: Whether weight gradients are ops of their own.
        orders: Ops of each pipeline rank, by number of microbatches.
    """

    schedule: Schedule
    homes: tuple[int, ...]
    split: bool
    orders: dict[int, Sequence[Sequence[Op]]] = field(default_factory=dict)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        count = interval.microbatches
        if count not in self.orders:
            first = FlushInterval(0, count, interval.update_interval, 0)
            timeline = check_schedule(self.schedule, place.ranks, first)
            self.orders[count] = [timeline.order(rank) for rank in range(place.ranks)]
        return fixed(self.orders[count][place.rank], interval)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.schedule.in_flight(place, interval)


@dataclass(frozen=True, slots=True)
class PolicyCost(CostModel):
    """A cost model that includes the weight policy of each stage.

    Attributes:
        cost: Cost model without the policy.
        overheads: Predictions and copies of each stage in a full pipeline, as the policy's ledger counts them.
        prediction: Seconds of a weight prediction.
        copy: Seconds of a copy of a stage's weights.
    """

    cost: CostModel
    overheads: Sequence[PolicyOverheads]
    prediction: float
    copy: float

    def compute(self, op: Op) -> float:
        overheads = self.overheads[op.stage]
        predictions = overheads.backward if op.kind is Kind.BACKWARD else overheads.forward
        return self.cost.compute(op) + self.prediction * predictions

    def message(self, op: Op) -> int:
        return self.cost.message(op)

    def update(self, rank: int) -> Sequence[Chunk]:
        *chunks, last = self.cost.update(rank)  # a policy that copies weights serves one stage per rank
        return (*chunks, Chunk(last.reduce, last.step + self.copy * self.overheads[rank].copies))


@dataclass(frozen=True, slots=True)
class EmulationPlan:
    """Flush interval, order, and seconds and bytes of each op.

    Attributes:
        grid: Grid of the ranks.
        interval: The first batch, or stream of batches.
        schedule: Order of ops.
        cost: Seconds and bytes of each op.
        perturbation: Factors on the seconds of ops, from jitter and stragglers.
        microbatches: Microbatches per batch and replica.
    """

    grid: Grid
    interval: FlushInterval
    schedule: Schedule
    cost: CostModel
    perturbation: Perturbation
    microbatches: int

    @classmethod
    def of(cls, config: RunConfig, *, static: bool = False) -> EmulationPlan:
        """The plan of a run. `static` fixes the order of ops."""
        grid, executor = config.grid.build(), emulated_settings(config)
        microbatches, update_interval = config.microbatches, config.update_interval
        batches = 1 if update_interval is None else config.measure.discard_first + config.measure.batches
        interval = FlushInterval(0, microbatches * batches, update_interval, 0)
        schedule, cost = config.schedule.build(), executor.cost.build()
        jitter = executor.jitter or Jitter()
        perturbation = Perturbation(config.seed, jitter.kind, jitter.spread, executor.stragglers or {})
        if update_interval is not None:
            overheads = policy_overheads(config.weights.build(), schedule, grid.inter, interval)
            cost = PolicyCost(cost, overheads, executor.prediction, executor.copying)
        if static:
            schedule = StaticOrder(schedule, homes_of(schedule, grid.inter), is_split(schedule))
        return cls(grid, interval, schedule, cost, perturbation, microbatches)


def emulated_settings(config: RunConfig) -> EmulatedExecutor:
    """Settings of the emulated executor."""
    assert isinstance(config.executor, EmulatedExecutor)
    return config.executor


# -- the rank ----------------------------------------------------------------------------------------------------------


class EmulatedRank:
    """One rank of an emulated run. The content of batches is ignored, and there is no loss."""

    @classmethod
    def reads(cls, config: RunConfig) -> Sequence[str]:
        """Jitter is drawn from the seed, and predictions of a smoothed policy need a rule with momentum."""
        jitter = emulated_settings(config).jitter
        return (
            *("batch", "grid", "schedule", "weights", "update_interval", "comm", "system.name", "system._target_"),
            *(("seed",) if jitter and jitter.spread else ()),
            *(("optimizer._target_", "optimizer.momentum") if config.weights.build().smoothed else ()),
        )

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises InvalidRequest for a run that cannot be emulated. Loads no torch."""
        if not config.system.supports_schedules:
            raise Unsupported(
                f"{config.system.command} under executor={config.executor.name}",
                rule="the ranks of an emulated system run the schedule of the config",
                legal="system=axonn without system._target_",
            )
        if config.launch.device != "cpu":
            raise Unsupported(
                f"launch.device={config.launch.device} under executor={config.executor.name}",
                rule="nothing is computed, and messages lie in host memory",
                legal="launch.device=cpu",
            )
        plan = EmulationPlan.of(config)
        plan.perturbation.check(plan.grid)

        def seconds(op: Op) -> float:
            return 0.0 if op.kind is Kind.UPDATE else plan.cost.compute(op)

        check_schedule(plan.schedule, plan.grid.inter, plan.interval, cost=seconds)  # also: every op has a cost

    @classmethod
    def bytes_per_rank(cls, config: RunConfig) -> list[int]:
        """Bytes of messages per rank: the largest one of any stage, as it is sent and as it is received."""
        grid, cost = config.grid.build(), emulated_settings(config).cost.build()
        stages = places(config.schedule.build(), grid.inter)[0].stages
        passes = [Op(stage, kind, 0) for stage in range(stages) for kind in (Kind.FORWARD, Kind.BACKWARD)]
        largest = max(map(cost.message, passes)) if stages > 1 else 0
        return [2 * largest] * grid.size

    def __init__(self, world: World, config: RunConfig) -> None:
        grid = config.grid.build()
        self.world, self.rank = world, world.rank
        self.place = place_of(config.schedule.build(), grid, world.rank)
        groups = [world.group(grid.data_parallel_group(rank)) for rank in range(grid.inter)]
        self.data_parallel_group = groups[self.place.rank]
        pipeline = grid.pipeline(self.rank)
        self.homes = [pipeline[self.place.rank_of(stage)] for stage in range(self.place.stages)]
        self.transport = world.transport(self.homes)
        self.plan = EmulationPlan.of(config, static=not self.transport.any_order)
        self.buffers: dict[int, Tensor] = {}
        self.microbatches = self.updates = 0  # completed so far
        self.interval = self.plan.interval
        self.trace = Trace()
        self.device_free_at: float | None = None  # end of the previous op, on the clock of perf_counter
        # MPI connects two ranks at their first message, so an untimed batch without sleeps comes first
        self.sleeps = False
        self._run(self._next_interval(max(self.plan.microbatches, grid.inter if self.streams else 0)))
        self.sleeps = True

    @property
    def streams(self) -> bool:
        """Whether a round is one stream of batches, after which the pipeline drains."""
        return self.plan.interval.update_interval is not None

    def train_batch(self, batch: Value | None = None) -> None:
        """Run one batch from drain to drain. It ends on all ranks together, like the exchange of a loss."""
        self._train(self.plan.microbatches)

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """Run a stream of batches. Returns no losses, and the end of each batch on the clock of perf_counter."""
        count, first = self.plan.microbatches, self.microbatches
        self._train(count * len(batches))
        done = {span.op.index: span.end for span in self.trace if span.op is not None and span.category == BACKWARD}
        ends = [done[first + count * (number + 1) - 1] for number in range(len(batches))]
        return [], ends

    def _train(self, microbatches: int) -> None:
        interval = self._next_interval(microbatches)
        self._run(interval)
        self.microbatches, self.updates = interval.end, self.updates + interval.updates

    def _next_interval(self, microbatches: int) -> FlushInterval:
        return FlushInterval(self.microbatches, microbatches, self.plan.interval.update_interval, self.updates)

    def observe(self) -> Trace:
        return self.trace

    def close(self) -> None:
        self.transport.close()

    def _run(self, interval: FlushInterval) -> None:
        schedule = self.plan.schedule
        self.trace, self.device_free_at, self.interval = Trace(), None, interval
        run_to_end(
            run_program(
                schedule.program(self.place, interval),
                self._execute,
                self.transport,
                rank=self.rank,
                homes=self.homes,
                bound=schedule.in_flight(self.place, interval),
                trace=self.trace,
                clock=perf_counter,
            )
        )
        if self.plan.grid.size > 1:
            self.world.all_reduce_numbers([0.0], "sum", self.transport.progress)

    def _execute(self, op: Op, value: Value) -> Value:
        """Sleep for the op. The cost model sees each interval as the first, because its ops repeat."""
        begin = self._begin_of(op)
        if op.kind is Kind.UPDATE:
            self._update(op, begin)
            return ()
        first = op._replace(index=op.index - self.interval.first)
        fed = feeds(op, len(self.homes))
        size = self.plan.cost.message(first) if fed is not None and self.homes[fed.stage] != self.rank else 0
        if self.sleeps:
            seconds = self.plan.cost.compute(first) * self.plan.perturbation(self.rank, first)
            self.device_free_at = begin + seconds
            sleep_until(self.device_free_at, self.transport.progress)
        return (self._buffer(size),) if size else ()

    def _begin_of(self, op: Op) -> float:
        """Time at which the device begins `op`.

        A device executes a queue of ops. It begins when the previous op ends, unless the op waited for a message. The
        work of the host in between, and its late wake-up, do not delay the device.
        """
        now = perf_counter()
        last = self.trace[-1] if self.trace else None
        waited = last is not None and last.category == WAIT and last.op == op and last.seconds > _NO_WAIT
        return now if self.device_free_at is None or waited else self.device_free_at

    def _update(self, op: Op, begin: float) -> None:
        """Reduce chunks one after the other; the step of a reduced chunk overlaps the next reduction.

        In a stream, the device is free for the next pass when the last step ends.
        """
        free_at, start, sent = begin, perf_counter(), 0
        group = self.data_parallel_group
        for chunk in self.plan.cost.update(self.place.rank):
            if chunk.reduce and len(group.ranks) > 1:
                wait_until(
                    group.all_reduce(self._buffer(self._buffer_bytes(chunk.reduce))).done, self.transport.progress
                )
                sent += chunk.reduce
            free_at = max(free_at, perf_counter()) + (chunk.step if self.sleeps else 0.0)
        end = perf_counter()
        if sent:
            self.trace.add(self.rank, REDUCE, start, end, op, sent)
        sleep_until(free_at, self.transport.progress)
        self.device_free_at = free_at if self.sleeps else self.device_free_at
        self.trace.add(self.rank, STEP, end, perf_counter(), op)

    def _buffer_bytes(self, sent: int) -> int:
        """Bytes of a buffer for which each rank sends `sent` bytes in a ring all-reduce."""
        count = len(self.data_parallel_group.ranks)
        return round(sent * count / (2 * (count - 1)))

    def _buffer(self, size: int) -> Any:
        """A buffer of `size` bytes with arbitrary content, allocated once."""
        if size not in self.buffers:
            self.buffers[size] = self.world.buffer(size)
        return self.buffers[size]


# -- prediction of the simulator -------------------------------------------------------------------------------------


def hops(trace: Iterable[Span], grid: Grid) -> list[float]:
    """Seconds from the end of an op to the start of the neighbour's op that waited for it, one per wait."""
    spans = list(trace)
    stages = stages_of(spans, grid)
    ends = {
        (grid.position(s.rank).data, message_of(s.op)): s.end for s in spans if s.op is not None and s.category != WAIT
    }
    hop_times = []
    for span in spans:
        if span.category == WAIT and span.op is not None and (need := needs(span.op, stages)) is not None:
            ended = ends.get((grid.position(span.rank).data, need))
            if ended is not None and ended > span.start:
                hop_times.append(span.end - ended)
    return hop_times


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of the simulator.

    Attributes:
        seconds: Seconds of one batch in a full pipeline.
        bytes: Bytes that ranks send to each other in the passes of an interval.
    """

    seconds: float
    bytes: int


def predict(config: RunConfig, link: Link) -> Prediction:
    """The simulator's prediction for an emulated run over `link` between any two ranks."""
    from suite.simulate.cost.efficiency import Efficiency
    from suite.simulate.network.machine import Machine
    from suite.simulate.worker import NetworkModel, simulate

    plan = EmulationPlan.of(config, static=config.comm.order == "static")
    machine = Machine(
        name="emulated",
        devices_per_node=plan.grid.size,
        memory=1.0,  # quantities that the prediction does not depend on are 1
        peak={"float32": 1.0},
        memory_bandwidth=1.0,
        within=link,
        between=link,
        adapters=1,
        host=link,
    )
    efficiency = Efficiency(name="emulated", products=1.0, hop=link.latency)
    simulated = simulate(
        plan.schedule,
        plan.grid,
        plan.interval,
        plan.cost,
        NetworkModel.of(machine, efficiency, plan.grid.size),
        symmetric=plan.perturbation.nothing,
        slower=None if plan.perturbation.nothing else plan.perturbation,
    )
    update_interval = plan.interval.update_interval
    seconds = simulated.makespan if update_interval is None else simulated.period * plan.microbatches / update_interval
    return Prediction(seconds, sum(simulated.sent) * plan.grid.data)


def metrics(config: RunConfig, trace: Trace) -> dict[str, Metric]:
    """Metrics in addition to the batch times: the prediction, and the messages in the `trace` of the last batch."""
    from statistics import fmean  # imported here, to keep the start of many ranks short

    from suite.simulate.network.machine import Link

    network = emulated_settings(config).network
    hop_times = hops(trace, config.grid.build())
    if network is None:
        link = Link(latency=fmean(hop_times) if hop_times else 0.0, bandwidth=_INFINITE_BANDWIDTH)
    else:
        link = Link(latency=network.latency, bandwidth=network.bandwidth)
    prediction = predict(config, link)
    passes = [span.bytes for span in trace if span.category not in (REDUCE, STEP)]
    return {
        "simulated_time": Metric("s", "", (prediction.seconds,)),
        "payload_bytes": Metric("B", "", (float(sum(passes)),)),
        "simulated_bytes": Metric("B", "", (float(prediction.bytes),)),
        "message_time": Metric("s", "lower", tuple(hop_times), "op to op, where the second waited for the first"),
    }
