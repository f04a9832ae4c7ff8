"""Schedule of one rank, checked before it runs."""

from __future__ import annotations

from dataclasses import replace

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.protocols import Schedule
from suite.engine.replay.recorded_order import RecordedSchedule
from suite.schedule import evaluation
from suite.schedule.check import check, check_evaluation, check_message_order, check_one_version
from suite.schedule.static import fixed


class CheckedSchedule:
    """A schedule whose program is checked for every length of interval before it runs.

    Attributes:
        place: Stages and replica of this rank.
        update_interval: Microbatches per update; None for an update per batch.
        any_order: Whether this rank may choose among ready ops; otherwise it runs the checker's order.
        checked_orders: Checked order of this rank's ops, by number of microbatches.
        evaluation_orders: The same for evaluations.
    """

    def __init__(self, schedule: Schedule, place: Place, update_interval: int | None, *, any_order: bool) -> None:
        self.schedule, self.place, self.update_interval = schedule, place, update_interval
        self.any_order = any_order
        self.checked_orders: dict[int, tuple[Op, ...]] = {}
        self.evaluation_orders: dict[int, tuple[Op, ...]] = {}

    def program(self, interval: FlushInterval) -> Program:
        """The program of this rank. Raises IllegalSchedule where the schedule breaks a law."""
        order = self._checked_order(interval)
        return self.schedule.program(self.place, interval) if self.any_order or not order else fixed(order, interval)

    def in_flight(self, interval: FlushInterval) -> int:
        """The promised bound on open forward passes."""
        return self.schedule.in_flight(self.place, interval)

    def evaluation(self, interval: FlushInterval) -> Program:
        """The program of this rank in an evaluation."""
        if self.any_order:
            return evaluation(self.place, interval)
        count = interval.microbatches
        if count not in self.evaluation_orders:
            pipeline = [replace(self.place, rank=rank) for rank in range(self.place.ranks)]
            timeline = check_evaluation(evaluation, pipeline, FlushInterval(0, count, None, 0))
            self.evaluation_orders[count] = timeline.order(self.place.rank)
        return fixed(self.evaluation_orders[count], interval)

    def _checked_order(self, interval: FlushInterval) -> tuple[Op, ...]:
        """The checked order of this rank's ops, counted from 0; empty for a recorded order, which has run before."""
        if isinstance(self.schedule, RecordedSchedule):
            return ()
        ranks, every = self.place.ranks, self.update_interval
        # where ranks choose, the check of a stream that fills and drains the pipeline suffices
        count = interval.microbatches
        if every is not None and self.any_order:
            count = min(count, 4 * ranks + every)
        if count not in self.checked_orders:
            timeline = check(self.schedule, ranks, FlushInterval(0, count, every, 0))
            if not self.any_order:
                check_message_order(timeline)
            check_one_version(self.schedule, timeline, every)
            self.checked_orders[count] = timeline.order(self.place.rank)
        return self.checked_orders[count]
