"""Rank of an emulated run: ops are timed sleeps, messages are real.

The schedule of a system is driven by the worker that drives real ranks, through the same transports; only what an op
computes is replaced, by a cost model's seconds. Sleeping ranks do not compete for cores, so sixteen stages run on two.
The same schedule, costs and perturbations are given to the simulator: how far its prediction is from the clock is what
an emulation shows (law 6). No torch is loaded where messages travel over MPI. An asynchronous system streams the
batches of a round, as the engine does. The requests of its weight policy are slept like any other op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from suite.comm.p2p.polling import pause, until
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, Op, feeds, needs
from suite.core.protocols import Tensor, Value, World
from suite.core.record import Metric
from suite.core.trace import BACKWARD, REDUCE, STEP, WAIT, Span, Trace
from suite.engine.worker import drive
from suite.runner.executors.emulation_plan import EmulationPlan, Static, ordered, settings_of

if TYPE_CHECKING:
    from suite.simulate.network.machine import Link

_HERE = 1.0e-4  # seconds: a wait that is shorter found its message here
_FREE = 1.0e18  # bytes/s of a link whose latency holds all that a message takes


class Emulated:
    """One rank's part of an emulated run. A batch is ignored: nothing is read, and there is no loss."""

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises InvalidRequest for a config that cannot be emulated. Loads no torch."""
        if not config.system.runs_schedule:
            raise Unsupported(
                f"system={config.system.name} under executor={config.executor.name}",
                rule="a system whose ranks run the schedule of the config: that is emulated",
                legal="system=axonn",
            )
        if config.launch.device != "cpu":
            raise Unsupported(
                f"launch.device={config.launch.device} under executor={config.executor.name}",
                rule="nothing is computed, and messages lie in host memory",
                legal="launch.device=cpu",
            )
        EmulationPlan.of(config)

    @classmethod
    def bytes_per_rank(cls, config: RunConfig) -> list[int]:
        """Of each rank's messages: a buffer for each size that it sends or reduces, and one message that has come."""
        grid, cost = config.grid.build(), settings_of(config).cost.build()
        column = max(1, grid.data - 1)
        bytes_by_rank = []
        for stage in range(grid.inter):
            passes = [Op(stage, Kind.FORWARD, 0), Op(stage, Kind.BACKWARD, 0)]
            sent = {cost.message(op) for op in passes if feeds(op, grid.inter) is not None}
            sums = {chunk.reduce * grid.data // (2 * column) for chunk in cost.update(stage)} if grid.data > 1 else ()
            come = [cost.message(need) for op in passes if (need := needs(op, grid.inter)) and need.stage != stage]
            bytes_by_rank.append(int(sum({*sent, *sums}) + max(come, default=0)))
        return [bytes_by_rank[grid.place(rank).stage] for rank in range(grid.size)]

    def __init__(self, world: World, config: RunConfig) -> None:
        grid = config.grid.build()
        if world.size != grid.size:
            raise InvalidRequest(
                f"a grid of {grid.size} ranks ({grid}) in a world of {world.size}", rule="one rank per place"
            )
        self.world, self.rank, self.place = world, world.rank, grid.place(world.rank)
        columns = [world.group(grid.data_parallel_group(rank)) for rank in range(grid.inter)]
        self.column = columns[self.place.stage]
        self.transport = world.transport(grid.neighbour(self.rank, -1), grid.neighbour(self.rank, +1), grid.inter)
        self.plan = EmulationPlan.of(config, static=not self.transport.any_order)
        self.buffers: dict[int, Tensor] = {}
        self.microbatches = self.updates = 0  # that have been
        self.running = self.plan.interval
        self.trace = Trace()
        self.free: float | None = None  # when the device has done the op before
        self.asleep = False  # one batch without sleeps: MPI connects two ranks at their first message, in no sample
        self._run(self._next(max(self.plan.each, grid.inter) if self.plan.streams else self.plan.each))
        self.asleep = True

    @property
    def streams(self) -> bool:
        """Whether batches stream through a pipeline that drains when a turn ends (`stream` instead of train_batch)."""
        return self.plan.streams

    def train_batch(self, batch: Value | None = None) -> None:
        """One batch from drain to drain; it ends on all ranks together, like a batch whose loss is sent to every
        rank.
        """
        self._train(self.plan.each)

    def stream(self, batches: Sequence[Value]) -> tuple[list[float], list[float]]:
        """No losses, and when this rank was done with each batch, on the clock of perf_counter."""
        each, first = self.plan.each, self.microbatches
        self._train(each * len(batches))
        done = {span.op.index: span.end for span in self.trace if span.op is not None and span.category == BACKWARD}
        ends = [done[first + each * (number + 1) - 1] for number in range(len(batches))]
        return [], ends

    def _train(self, microbatches: int) -> None:
        interval = self._next(microbatches)
        self._run(interval)
        self.microbatches, self.updates = interval.end, self.updates + interval.updates

    def _next(self, microbatches: int) -> FlushInterval:
        return FlushInterval(self.microbatches, microbatches, self.plan.interval.update_interval, self.updates)

    def evaluate(self, batches: Sequence[Value]) -> None:
        """Nothing: there are no weights."""

    def observe(self) -> Trace:
        return self.trace

    def memory(self, batch: Value | None = None) -> tuple[None, dict[str, int]]:
        """Nothing: a sleep holds no activations."""
        return None, {}

    def close(self) -> None:
        self.transport.close()

    # -- how ---------------------------------------------------------------------------------------------------------

    def _run(self, interval: FlushInterval) -> None:
        plan = self.plan
        schedule = plan.schedule
        if isinstance(schedule, Static) and interval.microbatches != plan.interval.microbatches:
            schedule = ordered(schedule.schedule, plan.grid.inter, interval)
        self.trace, self.free, self.running = Trace(), None, interval
        drive(
            schedule.program(self.place, interval),
            self._execute,
            self.transport,
            rank=self.rank,
            stages=plan.grid.inter,
            bound=schedule.in_flight(self.place, interval),
            trace=self.trace,
        )
        if plan.grid.size > 1:
            self.world.all_reduce_scalar(0.0, "sum", self.transport.progress)

    def _execute(self, op: Op, value: Value) -> Value:
        """Every work costs what the first one does: it repeats its ops."""
        begin = self._begin(op)
        if op.kind is Kind.UPDATE:
            self._update(op, begin)
            return ()
        first = op._replace(index=op.index - self.running.first)
        size = self.plan.cost.message(first) if feeds(op, self.plan.grid.inter) is not None else 0
        if self.asleep:
            self.free = begin + self.plan.cost.compute(first) * self.plan.slower(self.rank, first)
            pause(self.free, self.transport.progress)
        return (self._buffer(size),) if size else ()

    def _begin(self, op: Op) -> float:
        """When the device begins `op`: as soon as it is free where the op did not have to wait for its message.

        A device works off its queue; what its host does in between, and how late it wakes, is not the device's time."""
        now = perf_counter()
        last = self.trace[-1] if self.trace else None
        waited = last is not None and last.category == WAIT and last.op == op and last.seconds > _HERE
        return now if self.free is None or waited else self.free

    def _update(self, op: Op, begin: float) -> None:
        """Chunks are reduced one after the other; the step of a reduced chunk overlaps the next reduction. In a
        stream the device is free for the next pass when the step is over.
        """
        free, start, sent = begin, perf_counter(), 0
        for chunk in self.plan.cost.update(self.place.stage):
            if chunk.reduce and len(self.column.ranks) > 1:
                until(self.column.all_reduce(self._buffer(self._reduced(chunk.reduce))).done, self.transport.progress)
                sent += chunk.reduce
            free = max(free, perf_counter()) + (chunk.step if self.asleep else 0.0)
        end = perf_counter()
        if sent:
            self.trace.add(self.rank, REDUCE, start, end, op, sent)
        pause(free, self.transport.progress)
        self.free = free if self.asleep else self.free
        self.trace.add(self.rank, STEP, end, perf_counter(), op)

    def _reduced(self, sent: int) -> int:
        """Bytes of a buffer of which each rank sends `sent` when a ring sums it."""
        count = len(self.column.ranks)
        return round(sent * count / (2 * (count - 1)))

    def _buffer(self, size: int) -> Any:
        """Buffers with arbitrary content, allocated once."""
        if size not in self.buffers:
            self.buffers[size] = self.world.buffer(size)
        return self.buffers[size]


# -- prediction of the simulator -------------------------------------------------------------------------------------


def hops(trace: Iterable[Span], grid: Grid) -> list[float]:
    """Seconds from the end of an op to the start of the neighbour's that was waiting for it, one per such wait."""
    spans = list(trace)
    ends = {(grid.place(s.rank).replica, s.op): s.end for s in spans if s.op is not None and s.category != WAIT}
    hop_times = []
    for span in spans:
        if span.category == WAIT and span.op is not None and (need := needs(span.op, grid.inter)) is not None:
            ended = ends.get((grid.place(span.rank).replica, need))
            if ended is not None and ended > span.start:
                hop_times.append(span.end - ended)
    return hop_times


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds: of one batch, in a full pipeline; bytes: that ranks send one another in the passes of a work."""

    seconds: float
    bytes: int


def predict(config: RunConfig, link: Link) -> Prediction:
    """The simulator's prediction for the run that `config` emulates, over this link between two ranks."""
    from suite.simulate.cost.efficiency import Stack
    from suite.simulate.network.machine import Machine
    from suite.simulate.worker import NetworkModel, simulate

    plan = EmulationPlan.of(config, static=config.comm.order == "static")
    machine = Machine(
        name="emulated",
        devices_per_node=plan.grid.size,
        memory=1.0,  # nothing is computed: what has no part in a prediction is 1
        peak={"float32": 1.0},
        memory_bandwidth=1.0,
        within=link,
        between=link,
        adapters=1,
        host=link,
    )
    stack = Stack(name="emulated", products=1.0, hop=link.latency)
    simulated = simulate(
        plan.schedule,
        plan.grid,
        plan.interval,
        plan.cost,
        NetworkModel.of(machine, stack, plan.grid.size),
        symmetric=plan.slower.nothing,
        slower=None if plan.slower.nothing else plan.slower,
    )
    every = plan.interval.update_interval
    seconds = simulated.makespan if every is None else simulated.period * plan.each / every
    return Prediction(seconds, sum(simulated.sent) * plan.grid.data)


def metrics(config: RunConfig, trace: Trace) -> dict[str, Metric]:
    """Metrics in addition to the batch times: the prediction, and the messages in the `trace` of the last batch."""
    from statistics import fmean  # not on ranks, which are many and start at once

    from suite.simulate.network.machine import Link

    network = settings_of(config).network
    hop_times = hops(trace, config.grid.build())
    if network is None:
        link = Link(latency=fmean(hop_times) if hop_times else 0.0, bandwidth=_FREE)
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
