"""Decides how a rank stands in for a device that is not here: its ops are timed sleeps, its messages are real.

The schedule of a system is driven by the worker that drives real ranks, through the same transports; only what an op
computes is replaced, by a cost model's seconds. Sleeping ranks do not compete for cores, so sixteen stages run on two.
The same schedule, costs and perturbations are given to the simulator: how far its prediction is from the clock is what
an emulation shows (law 6). No torch is loaded where messages travel over MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from suite.comm.waiting import pause, until
from suite.core.build import build
from suite.core.errors import Refused, Unsupported
from suite.core.grid import Grid
from suite.core.op import Kind, Op, Place, Program, Work, feeds, needs
from suite.core.perturb import Perturbation
from suite.core.protocols import CostModel, Missing, Ready, Schedule, Value, World
from suite.core.record import Metric, Source
from suite.core.trace import REDUCE, STEP, WAIT, Span, Trace
from suite.engine.worker import drive
from suite.schedule.check import check as check_schedule
from suite.schedule.static import fixed

_HERE = 1.0e-4  # seconds: a wait that is shorter found its message here
_FREE = 1.0e18  # bytes/s of a link whose latency holds all that a message takes
_ENGINE = "suite.engine.system.EngineSystem"  # its systems are a schedule, and so can be emulated


@dataclass(frozen=True, slots=True)
class Static:
    """A schedule in the order that the checker found, as a transport has it that cannot choose."""

    schedule: Schedule
    orders: Sequence[Sequence[Op]]

    def program(self, place: Place, work: Work) -> Program:
        return fixed(self.orders[place.stage], work)

    def in_flight(self, place: Place, work: Work) -> int:
        return self.schedule.in_flight(place, work)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is emulated: the same for a rank and for the simulator. work: the first batch."""

    grid: Grid
    work: Work
    schedule: Schedule
    cost: CostModel
    slower: Perturbation

    @classmethod
    def of(cls, config: Mapping[str, Any], *, static: bool = False) -> Plan:
        """Raises Refused for a config that cannot be emulated."""
        grid, batch, executor = Grid(**config["grid"]), config["batch"], config["executor"]
        work = Work(0, batch["size"] // (batch["microbatch"] * grid.data), None, 0)
        schedule, cost = build(config["schedule"]), build(executor["cost"])
        if not isinstance(schedule, Schedule):
            raise Refused(f"{config['schedule']['_target_']} is no schedule", rule="program() and in_flight()")
        slower = Perturbation.of(executor, grid, config["seed"])

        def seconds(op: Op) -> float:
            return 0.0 if op.kind is Kind.UPDATE else _checked(f"{op}, seconds:", cost.compute(op))

        timeline = check_schedule(schedule, grid.inter, work, cost=seconds)
        orders = [timeline.order(stage) for stage in range(grid.inter)]
        for stage, order in enumerate(orders):
            for op in order:
                if feeds(op, grid.inter) is not None:
                    _checked(f"a message of {op}, bytes:", cost.message(op), whole=True)
            for chunk in cost.update(stage):
                _checked(f"a step of stage {stage}, seconds:", chunk.step)
                _checked(f"a reduction of stage {stage}, bytes:", chunk.reduce, whole=True)
        return cls(grid, work, Static(schedule, orders) if static else schedule, cost, slower)


def _checked(what: str, value: float, *, whole: bool = False) -> float:
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value < float("inf"):
        rule = f"a {'whole ' if whole else ''}number, finite and not negative"
        raise Refused(f"executor.cost: {what} {value}", rule=rule, legal="1024" if whole else "0.01")
    return value


class Emulated:
    """One rank's part of an emulated run. A batch is ignored: nothing is read, and there is no loss."""

    source = Source.EMULATED

    @classmethod
    def check(cls, config: Mapping[str, Any]) -> None:
        """Raises Refused for a config that cannot be emulated. Loads no torch."""
        if config["system"]["_target_"] != _ENGINE:
            raise Unsupported(
                f"system={config['system']['name']} under executor={config['executor']['name']}",
                rule="a system on the suite's engine: its schedule is what is emulated",
                legal="system=axonn",
            )
        if config["launch"]["device"] != "cpu":
            raise Unsupported(
                f"launch.device={config['launch']['device']} under executor={config['executor']['name']}",
                rule="nothing is computed, and messages lie in host memory",
                legal="launch.device=cpu",
            )
        Plan.of(config)
        if config["executor"]["network"] is not None:
            link_of(config["executor"]["network"])

    @classmethod
    def probe(cls, config: Mapping[str, Any]) -> Ready | Missing:
        return Ready()

    def __init__(self, world: World, config: Mapping[str, Any]) -> None:
        grid = Grid(**config["grid"])
        if world.size != grid.size:
            raise Refused(f"a grid of {grid.size} ranks ({grid}) in a world of {world.size}", rule="one rank per place")
        self.world, self.rank, self.place = world, world.rank, grid.place(world.rank)
        columns = [world.group(grid.column(rank)) for rank in range(grid.inter)]
        self.column = columns[self.place.stage]
        self.transport = world.transport(grid.neighbour(self.rank, -1), grid.neighbour(self.rank, +1), grid.inter)
        self.plan = Plan.of(config, static=not self.transport.any_order)
        self.buffers: dict[int, Any] = {}
        self.batches = 0
        self.trace = Trace()
        self.free: float | None = None  # when the device has done the op before
        self.asleep = False  # one batch without sleeps: MPI connects two ranks at their first message, in no sample
        self._run()
        self.asleep = True

    def train_batch(self, batch: Value | None = None) -> None:
        """One batch from drain to drain; ends on all ranks together, as one does whose loss every rank is told."""
        self._run()
        self.batches += 1

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

    def _run(self) -> None:
        plan, count = self.plan, self.plan.work.microbatches
        work = Work(self.batches * count, count, None, self.batches)
        self.trace, self.free = Trace(), None
        drive(
            plan.schedule.program(self.place, work),
            self._execute,
            self.transport,
            rank=self.rank,
            stages=plan.grid.inter,
            bound=plan.schedule.in_flight(self.place, work),
            trace=self.trace,
        )
        if plan.grid.size > 1:
            self.world.total(0.0, self.transport.progress)

    def _execute(self, op: Op, value: Value) -> Value:
        """Every batch costs what the first one does: it repeats its ops."""
        begin = self._begin(op)
        if op.kind is Kind.UPDATE:
            self._update(op, begin)
            return ()
        first = op._replace(index=op.index - self.batches * self.plan.work.microbatches)
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
        """Chunks are reduced one after the other; each is stepped once it is reduced, beside the next reduction."""
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
        self.trace.add(self.rank, STEP, end, perf_counter(), op)

    def _reduced(self, sent: int) -> int:
        """Bytes of a buffer of which each rank sends `sent` when a ring sums it."""
        count = len(self.column.ranks)
        return round(sent * count / (2 * (count - 1)))

    def _buffer(self, size: int) -> Any:
        """Bytes that nobody reads, allocated once."""
        if size not in self.buffers:
            self.buffers[size] = self.world.buffer(size)
        return self.buffers[size]


# -- what the simulator says -----------------------------------------------------------------------------------------


def link_of(network: Mapping[str, Any]) -> Any:
    """The link between two ranks. Raises Refused for numbers that are none."""
    from suite.simulate.machine import Link

    if set(network) != {"latency", "bandwidth"}:
        raise Refused(
            f"executor.network={dict(network)}",
            rule="latency in seconds and bandwidth in bytes/s, or null: as the run's own messages have it",
            legal="executor.network={latency: 5.0e-4, bandwidth: 5.0e+9}",
        )
    return Link(**network)


def hops(trace: Iterable[Span], grid: Grid) -> list[float]:
    """Seconds from the end of an op to the start of the neighbour's that was waiting for it, one per such wait."""
    spans = list(trace)
    ends = {(grid.place(s.rank).replica, s.op): s.end for s in spans if s.op is not None and s.category != WAIT}
    found = []
    for span in spans:
        if span.category == WAIT and span.op is not None and (need := needs(span.op, grid.inter)) is not None:
            ended = ends.get((grid.place(span.rank).replica, need))
            if ended is not None and ended > span.start:
                found.append(span.end - ended)
    return found


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one batch: seconds, and bytes that ranks send one another in passes."""

    seconds: float
    bytes: int


def predict(config: Mapping[str, Any], network: Mapping[str, Any]) -> Prediction:
    """What the simulator says of the run that `config` emulates, on this network."""
    from suite.simulate.machine import Machine
    from suite.simulate.stack import Stack
    from suite.simulate.worker import Network, simulate

    plan, link = Plan.of(config, static=config["comm"]["order"] == "static"), link_of(network)
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
    found = simulate(
        plan.schedule,
        plan.grid,
        plan.work,
        plan.cost,
        Network.of(machine, stack, plan.grid.size),
        symmetric=plan.slower.nothing,
        slower=None if plan.slower.nothing else plan.slower,
    )
    return Prediction(found.makespan, sum(found.sent) * plan.grid.data)


def metrics(config: Mapping[str, Any], trace: Trace) -> dict[str, Metric]:
    """Beside an emulated run's batch times: what was predicted, and what its last batch `trace` sent."""
    from statistics import fmean  # not on ranks, which are many and start at once

    grid, network = Grid(**config["grid"]), config["executor"]["network"]
    taken = hops(trace, grid)
    if network is None:
        network = {"latency": fmean(taken) if taken else 0.0, "bandwidth": _FREE}
    told = predict(config, network)
    passes = [span.bytes for span in trace if span.category not in (REDUCE, STEP)]
    return {
        "simulated_time": Metric("s", "", (told.seconds,)),
        "payload_bytes": Metric("B", "", (float(sum(passes)),)),
        "simulated_bytes": Metric("B", "", (float(told.bytes),)),
        "message_time": Metric("s", "lower", tuple(taken), "op to op, where the second waited for the first"),
    }
