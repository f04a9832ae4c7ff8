"""Makespans of a static order for many op costs and latencies at once.

Most schedules fix the order of the ops of each rank in advance. Their times follow from one pass over the ops, in which
every time is a vector with an element per setting. The results equal those of `suite.simulate.worker.simulate` bit for
bit where messages have no size. A message-driven schedule chooses its order while it runs and has no static order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import IllegalSchedule
from suite.core.op import FlushInterval, Kind, Op, Place, feeds, message_of, needs, only_order
from suite.core.protocols import CostModel, Schedule
from suite.schedule.check import memory_fronts
from suite.schedule.placement import places

Vector = NDArray[np.float64]  # an element per setting
PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)


@dataclass(frozen=True, slots=True)
class RankOrders:
    """Ops of each pipeline rank in the order in which they run, without updates."""

    places: tuple[Place, ...]
    ops: tuple[tuple[Op, ...], ...]

    @property
    def count(self) -> int:
        """Number of ops."""
        return sum(map(len, self.ops))

    def fronts(self) -> list[frozenset[tuple[int, int]]]:
        """Pairs of `suite.schedule.check.memory_fronts` of each rank."""
        return [memory_fronts(ops) for ops in self.ops]


@dataclass(frozen=True, slots=True)
class OrderTimes:
    """Times of an order, by setting.

    Attributes:
        makespan: End of the last op.
        stage_time: Longest time from the first start to the last end on one rank (arXiv 2401.10241, Section 4).
    """

    makespan: tuple[float, ...]
    stage_time: tuple[float, ...]


def static_order(schedule: Schedule, ranks: int, interval: FlushInterval) -> RankOrders | None:
    """The order of a schedule; None if its programs accept several ops at once.

    Raises InvalidRequest for a setting that the schedule refuses.
    """
    where = places(schedule, ranks)
    orders = []
    for place in where:
        ops = only_order(schedule.program(place, interval))
        if ops is None:
            return None
        orders.append(tuple(op for op in ops if op.kind is not Kind.UPDATE))
    return RankOrders(where, tuple(orders))


def times(order: RankOrders, costs: Sequence[CostModel], latencies: Sequence[float]) -> OrderTimes:
    """Times of an order under each pair of a cost model and a latency.

    Args:
        costs: Cost models with equal costs on every stage, whose messages have no size.
        latencies: Seconds of a message between two ranks, one for each cost model.

    Raises IllegalSchedule for an order that deadlocks.
    """
    place, stages = order.places[0], order.places[0].stages
    seconds = {kind: np.array([cost.compute(Op(0, kind, 0)) for cost in costs]) for kind in PASSES}
    delay = np.array(latencies, dtype=float)
    free: list[Vector] = [np.zeros(len(costs)) for _ in order.ops]
    first: list[Vector | None] = [None] * len(order.ops)
    arrived: dict[Op, Vector] = {}
    upcoming, moved = [0] * len(order.ops), True
    while moved:
        moved = False
        for rank, ops in enumerate(order.ops):
            while upcoming[rank] < len(ops):
                op = ops[upcoming[rank]]
                need, start = needs(op, stages), free[rank]
                if need is not None:
                    if need not in arrived:
                        break
                    start = np.maximum(start, arrived.pop(need))
                end = start + seconds[op.kind]
                if first[rank] is None:
                    first[rank] = start
                if op.kind is not Kind.WEIGHT and (fed := feeds(op, stages)) is not None:
                    arrived[message_of(op)] = end if place.rank_of(fed.stage) == rank else end + delay
                free[rank] = end
                upcoming[rank] += 1
                moved = True
    if any(at < len(ops) for at, ops in zip(upcoming, order.ops, strict=True)):
        waits = [str(ops[at]) for at, ops in zip(upcoming, order.ops, strict=True) if at < len(ops)]
        raise IllegalSchedule(f"deadlock: {', '.join(waits)} wait for messages")
    makespan = np.maximum.reduce(free)
    spans = np.maximum.reduce([end - start for end, start in zip(free, first, strict=True) if start is not None])
    return OrderTimes(tuple(makespan.tolist()), tuple(spans.tolist()))
