"""Activations that a rank holds at once, by stage, as its schedule orders them.

From a forward pass to its backward pass a stage holds what the forward pass saved. From an input gradient to its weight
gradient it holds the inputs and output gradients of deferred products, which are less. The peaks of the two do not
coincide, so memory is a maximum over states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

from suite.core.members import missing_members
from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Place, only_order
from suite.core.protocols import Schedule


class _SplittingSchedule(Schedule, Protocol):
    """Schedule that defines whether weight gradients are ops of their own."""

    @property
    def split(self) -> bool: ...


def _may_split(schedule: Schedule) -> TypeGuard[_SplittingSchedule]:
    return not missing_members(schedule, _SplittingSchedule)


@dataclass(frozen=True, slots=True, order=True)
class HeldState:
    """State of a rank.

    Attributes:
        started: Forward passes without a backward pass or an input gradient, by stage of the rank.
        owed: Input gradients without a weight gradient, by stage of the rank.
    """

    started: tuple[int, ...]
    owed: tuple[int, ...]


def held_states(schedule: Schedule, place: Place, interval: FlushInterval) -> frozenset[HeldState]:
    """States of the rank at `place` that bound its memory.

    With one stage per rank and whole backward passes, the state has the promised forward passes in flight. Any other
    program with one order gives all its states. A program that accepts several ops at once has an order for every
    arrival of messages, so the states are the promised forward passes in flight, all on one stage of the rank, and all
    started or all owed.
    """
    chunks = len(place.held_stages)
    if chunks == 1 and not (_may_split(schedule) and schedule.split):
        return frozenset([HeldState((schedule.in_flight(place, interval),), (0,))])
    ops = only_order(schedule.program(place, interval))
    if ops is None:
        return _bound(schedule.in_flight(place, interval), chunks)
    started, owed, states = [0] * chunks, [0] * chunks, set()
    for op in ops:
        chunk = place.chunk_of(op.stage)
        started[chunk] += (op.kind is Kind.FORWARD) - (op.kind in SENDS_GRADIENT)
        owed[chunk] += (op.kind is Kind.INPUT) - (op.kind is Kind.WEIGHT)
        if op.kind in (Kind.FORWARD, Kind.INPUT):
            states.add(HeldState(tuple(started), tuple(owed)))
    return frozenset(states)


def _bound(most: int, chunks: int) -> frozenset[HeldState]:
    none = (0,) * chunks
    corners = [tuple(most if chunk == full else 0 for chunk in range(chunks)) for full in range(chunks)]
    return frozenset([HeldState(corner, none) for corner in corners] + [HeldState(none, corner) for corner in corners])
