"""Plan of an emulated run: flush intervals, order, and the seconds and bytes of each op.

The same plan is given to a rank and to the simulator, so that what differs between them is the clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suite.config.executor import EmulatedExecutor, Jitter
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.jitter import Perturbation
from suite.core.op import FlushInterval, Kind, Op, Place, Program, feeds
from suite.core.protocols import Chunk, CostModel, Schedule
from suite.core.values import number
from suite.schedule.check import check as check_schedule
from suite.schedule.static import fixed
from suite.simulate.policy_overheads import PolicyOverheads, asked


@dataclass(frozen=True, slots=True)
class Static:
    """A schedule in the order that the checker found, as a transport has it that cannot choose."""

    schedule: Schedule
    orders: Sequence[Sequence[Op]]

    def program(self, place: Place, interval: FlushInterval) -> Program:
        return fixed(self.orders[place.stage], interval)

    def in_flight(self, place: Place, interval: FlushInterval) -> int:
        return self.schedule.in_flight(place, interval)


@dataclass(frozen=True, slots=True)
class Asking(CostModel):
    """A cost model that also charges each stage for its weight policy: seconds of a prediction and of a copy of the
    stage's weights, as often as the policy's ledger counts them in a full pipeline.
    """

    cost: CostModel
    asks: Sequence[PolicyOverheads]
    prediction: float
    copy: float

    def compute(self, op: Op) -> float:
        asks = self.asks[op.stage]
        return self.cost.compute(op) + self.prediction * (asks.backward if op.kind is Kind.BACKWARD else asks.forward)

    def message(self, op: Op) -> int:
        return self.cost.message(op)

    def update(self, stage: int) -> Sequence[Chunk]:
        *chunks, last = self.cost.update(stage)
        return (*chunks, Chunk(last.reduce, last.step + self.copy * self.asks[stage].copies))


@dataclass(frozen=True, slots=True)
class EmulationPlan:
    """Plan of the emulation, equal for a rank and for the simulator.

    Attributes:
        work: The first batch, or stream of batches.
        each: Microbatches of a batch and replica.
    """

    grid: Grid
    interval: FlushInterval
    schedule: Schedule
    cost: CostModel
    slower: Perturbation
    each: int

    @property
    def streams(self) -> bool:
        return self.interval.update_interval is not None

    @classmethod
    def of(cls, config: RunConfig, *, static: bool = False) -> EmulationPlan:
        """Raises InvalidRequest for a config that cannot be emulated."""
        grid, executor = config.grid.build(), settings_of(config)
        each, every = config.microbatches, config.update_interval
        turn = config.measure.discard_first + config.measure.batches
        interval = FlushInterval(0, each if every is None else each * turn, every, 0)
        schedule, cost = config.schedule.build(), executor.cost.build()
        jitter = executor.jitter or Jitter()
        slower = Perturbation(config.seed, jitter.kind, jitter.spread, executor.stragglers or {})
        slower.check(grid)
        if every is not None:
            asks = asked(config.weights.build(), schedule, grid.inter, interval)
            cost = Asking(cost, asks, executor.prediction, executor.copying)

        def seconds(op: Op) -> float:
            return 0.0 if op.kind is Kind.UPDATE else _checked(f"{op}, seconds:", cost.compute(op))

        timeline = check_schedule(schedule, grid.inter, interval, cost=seconds)
        orders = [timeline.order(stage) for stage in range(grid.inter)]
        for stage, order in enumerate(orders):
            for op in order:
                if feeds(op, grid.inter) is not None:
                    _checked(f"a message of {op}, bytes:", cost.message(op), whole=True)
            for chunk in cost.update(stage):
                _checked(f"a step of stage {stage}, seconds:", chunk.step)
                _checked(f"a reduction of stage {stage}, bytes:", chunk.reduce, whole=True)
        return cls(grid, interval, Static(schedule, orders) if static else schedule, cost, slower, each)


def settings_of(config: RunConfig) -> EmulatedExecutor:
    """The keys of the executor. Raises InvalidRequest where it does not emulate."""
    executor = config.executor
    if isinstance(executor, EmulatedExecutor):
        return executor
    raise InvalidRequest(f"executor.kind={executor.kind}", rule="ranks are emulated", legal="executor=emulated")


def ordered(schedule: Schedule, stages: int, interval: FlushInterval) -> Static:
    """The order that the checker finds with ticks for times."""
    timeline = check_schedule(schedule, stages, interval)
    return Static(schedule, [timeline.order(stage) for stage in range(stages)])


def _checked(what: str, value: float, *, whole: bool = False) -> float:
    if not number(value) or value < 0 or (whole and not isinstance(value, int)):
        rule = f"a {'whole ' if whole else ''}number, finite and not negative"
        raise InvalidRequest(f"executor.cost: {what} {value}", rule=rule, legal="1024" if whole else "0.01")
    return value
