"""Schedule of one stage, checked before it runs."""

from __future__ import annotations

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.protocols import Schedule
from suite.engine.recorded_order import RecordedSchedule
from suite.schedule.check import check
from suite.schedule.static import fixed


class CheckedSchedule:
    """A schedule whose program is checked for every length of interval before it runs.

    Attributes:
        place: Stage and replica of this rank.
        update_interval: Microbatches per update; None for an update per batch.
        any_order: Whether this rank may choose among ready ops; otherwise it runs the checker's order.
        checked_orders: Checked order of this stage's ops, by number of microbatches.
    """

    def __init__(self, schedule: Schedule, place: Place, update_interval: int | None, *, any_order: bool) -> None:
        self.schedule, self.place, self.update_interval = schedule, place, update_interval
        self.any_order = any_order
        self.checked_orders: dict[int, tuple[Op, ...]] = {}

    def program(self, interval: FlushInterval) -> Program:
        """The program of this stage. Raises IllegalSchedule where the schedule breaks a law."""
        order = self._checked_order(interval)
        return self.schedule.program(self.place, interval) if self.any_order or not order else fixed(order, interval)

    def in_flight(self, interval: FlushInterval) -> int:
        """The promised bound on open forward passes."""
        return self.schedule.in_flight(self.place, interval)

    def _checked_order(self, interval: FlushInterval) -> tuple[Op, ...]:
        """The checked order of this stage's ops, counted from 0; empty for a recorded order, which has run before."""
        if isinstance(self.schedule, RecordedSchedule):
            return ()
        stages, every = self.place.stages, self.update_interval
        # where ranks choose, the check of a stream that fills and drains the pipeline suffices
        count = interval.microbatches
        if every is not None and self.any_order:
            count = min(count, 4 * stages + every)
        if count not in self.checked_orders:
            timeline = check(self.schedule, stages, FlushInterval(0, count, every, 0))
            self.checked_orders[count] = timeline.order(self.place.stage)
        return self.checked_orders[count]
