"""Placement of stages on pipeline ranks, as a schedule defines it."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeGuard

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.members import missing_members
from suite.core.op import Place
from suite.core.protocols import PlacedSchedule, Schedule, TabledSchedule, WeightPolicy


def is_placed(schedule: Schedule) -> TypeGuard[PlacedSchedule]:
    """Whether a schedule defines its number of chunks; every other schedule has one unsplit chunk per rank."""
    return not missing_members(schedule, PlacedSchedule)


def is_tabled(schedule: Schedule) -> TypeGuard[TabledSchedule]:
    """Whether a schedule lists the rank of each stage."""
    return not missing_members(schedule, TabledSchedule)


def places(schedule: Schedule, ranks: int, replica: int = 0, replicas: int = 1) -> tuple[Place, ...]:
    """Place of each pipeline rank of one replica.

    Raises InvalidRequest for a schedule of another number of ranks.
    """
    chunks, fold, homes = 1, False, None
    if is_tabled(schedule):
        homes = schedule.homes
        if max(homes) + 1 != ranks:
            raise InvalidRequest(
                f"grid.inter={ranks} with a schedule of {max(homes) + 1} ranks",
                rule="the pipeline ranks of the schedule",
                legal=f"grid.inter={max(homes) + 1}",
            )
    elif is_placed(schedule):
        chunks, fold = schedule.chunks, schedule.fold
    return tuple(Place(rank, ranks, replica, replicas, chunks, fold, homes) for rank in range(ranks))


def place_of(schedule: Schedule, grid: Grid, rank: int) -> Place:
    """Place of a rank of `grid`. Raises InvalidRequest for a schedule of another number of ranks."""
    at = grid.position(rank)
    return places(schedule, grid.inter, at.data, grid.data)[at.inter]


def homes_of(schedule: Schedule, ranks: int) -> tuple[int, ...]:
    """Pipeline rank of each stage. Raises InvalidRequest for a schedule of another number of ranks."""
    place = places(schedule, ranks)[0]
    return tuple(place.rank_of(stage) for stage in range(place.stages))


def messages_per_microbatch(place: Place) -> int:
    """Messages between ranks: an activation and a gradient for each two neighbouring stages on different ranks."""
    homes = [place.rank_of(stage) for stage in range(place.stages)]
    return 2 * sum(before != after for before, after in pairwise(homes))


def is_split(schedule: Schedule) -> bool:
    """Whether a schedule splits backward passes into input gradient and weight gradient."""
    return (is_tabled(schedule) or is_placed(schedule)) and schedule.split


def is_plain(schedule: Schedule) -> bool:
    """Whether a schedule has one stage per rank, in rank order, and whole backward passes."""
    if is_tabled(schedule):
        return schedule.homes == tuple(range(len(schedule.homes))) and not schedule.split
    return not (is_placed(schedule) and (schedule.chunks > 1 or schedule.split))


def check_policy(policy: WeightPolicy, schedule: Schedule) -> None:
    """Raise Unsupported for an asynchronous policy with several stages per rank or a split backward pass.

    The published policies define the versions of one stage per rank and of whole backward passes.
    """
    if not policy.any_placement and not is_plain(schedule):
        raise Unsupported(
            "weights",
            type(policy).__name__,
            rule="versions of an asynchronous pipeline are those of one stage per rank and whole backward passes; the "
            "schedule has several stages per rank or a split backward pass",
            legal="weights=latest, or schedule=one_f_one_b",
        )
