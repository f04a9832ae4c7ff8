"""Activations that a rank holds at once, by stage, as its schedule orders them.

From a forward pass to its backward pass a stage holds what the forward pass saved. From an input gradient to its weight
gradient it holds the inputs and output gradients of deferred products, which are less. The peaks of the two do not
coincide, so memory is a maximum over states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suite.core.op import SENDS_GRADIENT, FlushInterval, Kind, Op, Place
from suite.core.protocols import Schedule


@dataclass(frozen=True, slots=True, order=True)
class HeldState:
    """State of a rank.

    Attributes:
        started: Forward passes without a backward pass or an input gradient, by stage of the rank.
        owed: Input gradients without a weight gradient, by stage of the rank.
    """

    started: tuple[int, ...]
    owed: tuple[int, ...]


@dataclass(slots=True)
class _Counts:
    place: Place
    started: list[int] = field(default_factory=list)
    owed: list[int] = field(default_factory=list)

    def run(self, op: Op) -> None:
        chunk = self.place.chunk_of(op.stage)
        self.started[chunk] += (op.kind is Kind.FORWARD) - (op.kind in SENDS_GRADIENT)
        self.owed[chunk] += (op.kind is Kind.INPUT) - (op.kind is Kind.WEIGHT)


def held_states(schedule: Schedule, place: Place, interval: FlushInterval) -> frozenset[HeldState]:
    """States of the rank at `place` that bound its memory.

    A program with one order gives all its states. A program that accepts several ops at once has an order for every
    arrival of messages, so the states are the promised forward passes in flight, all on one stage of the rank, and all
    started or all owed.
    """
    chunks = len(place.held_stages)
    counts = _Counts(place, [0] * chunks, [0] * chunks)
    states = set()
    program = schedule.program(place, interval)
    accepted = next(program, ())
    while accepted:
        if len(accepted) > 1:
            return _bound(schedule.in_flight(place, interval), chunks)
        (op,) = accepted
        counts.run(op)
        if op.kind in (Kind.FORWARD, Kind.INPUT):
            states.add(HeldState(tuple(counts.started), tuple(counts.owed)))
        try:
            accepted = program.send(op)
        except StopIteration:
            accepted = ()
    return frozenset(states)


def _bound(most: int, chunks: int) -> frozenset[HeldState]:
    none = (0,) * chunks
    corners = [tuple(most if chunk == full else 0 for chunk in range(chunks)) for full in range(chunks)]
    return frozenset([HeldState(corner, none) for corner in corners] + [HeldState(none, corner) for corner in corners])
