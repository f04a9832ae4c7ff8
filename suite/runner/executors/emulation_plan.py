"""Plan of an emulated run: flush interval, order, and the seconds and bytes of each op.

A rank and the simulator execute the same plan, so they differ in the clock alone.
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
from suite.core.values import is_number
from suite.schedule.check import Timeline
from suite.schedule.check import check as check_schedule
from suite.schedule.placement import homes_of
from suite.schedule.static import fixed
from suite.simulate.policy_overheads import PolicyOverheads, policy_overheads


@dataclass(frozen=True, slots=True)
class StaticOrder:
    """A schedule in the checker's order, for a transport that cannot receive in any order.

    Attributes:
        orders: Ops of each pipeline rank.
        homes: Pipeline rank of each stage.
        split: Whether weight gradients are ops of their own.
    """

    schedule: Schedule
    orders: Sequence[Sequence[Op]]
    homes: tuple[int, ...]
    split: bool

    @classmethod
    def of(cls, schedule: Schedule, timeline: Timeline) -> StaticOrder:
        """The schedule in the order of `timeline`."""
        ranks = len(timeline.places)
        split = any(slot.op.kind is Kind.WEIGHT for slot in timeline.slots)
        return cls(schedule, [timeline.order(rank) for rank in range(ranks)], homes_of(schedule, ranks), split)

    def program(self, place: Place, interval: FlushInterval) -> Program:
        return fixed(self.orders[place.rank], interval)

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
    """Plan of the emulation, equal for a rank and for the simulator.

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

    @property
    def streams(self) -> bool:
        return self.interval.update_interval is not None

    @classmethod
    def of(cls, config: RunConfig, *, static: bool = False) -> EmulationPlan:
        """The plan of a run. `static` fixes the order of ops. Raises InvalidRequest if it cannot be emulated."""
        grid, executor = config.grid.build(), emulated_settings(config)
        microbatches, update_interval = config.microbatches, config.update_interval
        batches = 1 if update_interval is None else config.measure.discard_first + config.measure.batches
        interval = FlushInterval(0, microbatches * batches, update_interval, 0)
        schedule, cost = config.schedule.build(), executor.cost.build()
        jitter = executor.jitter or Jitter()
        perturbation = Perturbation(config.seed, jitter.kind, jitter.spread, executor.stragglers or {})
        perturbation.check(grid)
        if update_interval is not None:
            overheads = policy_overheads(config.weights.build(), schedule, grid.inter, interval)
            cost = PolicyCost(cost, overheads, executor.prediction, executor.copying)

        def seconds(op: Op) -> float:
            return 0.0 if op.kind is Kind.UPDATE else _check_cost(f"{op}, seconds:", cost.compute(op))

        timeline = check_schedule(schedule, grid.inter, interval, cost=seconds)
        for place in timeline.places:
            for op in timeline.order(place.rank):
                fed = feeds(op, timeline.stages)
                if fed is not None and place.rank_of(fed.stage) != place.rank:
                    _check_cost(f"a message of {op}, bytes:", cost.message(op), whole=True)
            for chunk in cost.update(place.rank):
                _check_cost(f"a step of stage {place.stage}, seconds:", chunk.step)
                _check_cost(f"a reduction of stage {place.stage}, bytes:", chunk.reduce, whole=True)
        schedule = StaticOrder.of(schedule, timeline) if static else schedule
        return cls(grid, interval, schedule, cost, perturbation, microbatches)


def emulated_settings(config: RunConfig) -> EmulatedExecutor:
    """Settings of the emulated executor. Raises InvalidRequest for another kind of executor."""
    executor = config.executor
    if isinstance(executor, EmulatedExecutor):
        return executor
    raise InvalidRequest(f"executor.kind={executor.kind}", rule="ranks are emulated", legal="executor=emulated")


def static_order(schedule: Schedule, ranks: int, interval: FlushInterval) -> StaticOrder:
    """The schedule in the order that the checker finds at one tick per pass."""
    return StaticOrder.of(schedule, check_schedule(schedule, ranks, interval))


def _check_cost(subject: str, value: float, *, whole: bool = False) -> float:
    if not is_number(value) or value < 0 or (whole and not isinstance(value, int)):
        rule = f"a {'whole ' if whole else ''}number, finite and not negative"
        raise InvalidRequest(f"executor.cost: {subject} {value}", rule=rule, legal="1024" if whole else "0.01")
    return value
