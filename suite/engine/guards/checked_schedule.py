"""Schedule of one rank, checked before it runs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from suite.core.op import FlushInterval, Op, Place, Program
from suite.core.protocols import Schedule
from suite.schedule import evaluation
from suite.schedule.check import check, check_evaluation, check_message_order, check_one_version
from suite.schedule.static import fixed


def checked_order(schedule: Schedule, place: Place, interval: FlushInterval, *, any_order: bool) -> tuple[Op, ...]:
    """The order in which this rank runs its ops, counted from 0; empty where it follows the schedule's program.

    Args:
        any_order: Whether the rank may choose among ready ops; otherwise it runs the checker's order.

    Raises IllegalSchedule where the schedule breaks a law."""
    count, every = interval.microbatches, interval.update_interval
    if every is not None and any_order:  # the check of a stream that fills and drains the pipeline suffices
        count = min(count, 4 * place.ranks + every)
    timeline = check(schedule, place.ranks, FlushInterval(0, count, every, 0))
    if not any_order:
        check_message_order(timeline)
    check_one_version(schedule, timeline, every)
    return () if any_order else timeline.order(place.rank)


def evaluation_program(place: Place, interval: FlushInterval, *, any_order: bool) -> Program:
    """The program of this rank in an evaluation."""
    return (
        evaluation(place, interval) if any_order else fixed(_evaluation_order(place, interval.microbatches), interval)
    )


@lru_cache
def _evaluation_order(place: Place, microbatches: int) -> tuple[Op, ...]:
    pipeline = [replace(place, rank=rank) for rank in range(place.ranks)]
    return check_evaluation(evaluation, pipeline, FlushInterval(0, microbatches, None, 0)).order(place.rank)
