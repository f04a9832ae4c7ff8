"""Memory budget of one pipeline rank.

The prediction of a run (suite.runner.estimate), the simulation of layers (suite.simulate.layer_model) and the planning
of a GPT's blocks (suite.simulate.block_model) count the bytes of one microbatch in different ways. How many
microbatches, waiting messages and weight versions a rank holds is decided here alone, so that no account omits a term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeGuard

from suite.core.members import missing_members
from suite.core.op import FlushInterval, Place
from suite.core.protocols import Schedule
from suite.memory.budget import Budget
from suite.memory.held_states import held_states
from suite.memory.layout import Layout


class StageMemory(Protocol):
    """Bytes of one microbatch on one stage (suite.workload.stage_memory.MicrobatchMemory).

    Attributes:
        saved: Bytes saved until the backward pass.
        transient: Largest transient of a pass, in addition to saved bytes.
        input: Bytes of the message that the stage receives; 0 on the first stage.
        owed: Bytes from an input gradient to its weight gradient, with a split backward pass.
    """

    @property
    def saved(self) -> int: ...

    @property
    def transient(self) -> int: ...

    @property
    def input(self) -> int: ...

    @property
    def owed(self) -> int: ...


class _SplittingSchedule(Schedule, Protocol):
    """Schedule that defines whether weight gradients are ops of their own."""

    @property
    def split(self) -> bool: ...


def _may_split(schedule: Schedule) -> TypeGuard[_SplittingSchedule]:
    return not missing_members(schedule, _SplittingSchedule)


def stage_budget(
    layout: Layout,
    microbatch_memory: StageMemory | Sequence[StageMemory],
    schedule: Schedule,
    place: Place,
    interval: FlushInterval,
    *,
    extra_versions: int,
    reducing: int,
    overlaps_step: bool,
    scratch_stays: bool,
) -> Budget:
    """Memory budget of the rank at `place`, in bytes on the device.

    With several stages per rank or a split backward pass, activations are the maximum over the states of the schedule
    (suite.memory.held_states), with the bytes of each stage.

    Args:
        layout: Model states of the rank.
        microbatch_memory: Bytes of one microbatch on the stage of the rank, or on each of its stages in order.
        schedule: Order of passes; bounds the microbatches in flight.
        place: Stage and replica of the rank.
        interval: Microbatches between two drains. Without `update_interval` the pipeline drains before its update.
        extra_versions: Copies of the weights that passes read, in addition to the newest.
        reducing: Bytes that a gradient reduction allocates.
        overlaps_step: Whether an optimizer step runs during a reduction.
        scratch_stays: Whether the scratch of an update stays allocated between updates. It then counts as `waiting`.
    """
    in_flight = schedule.in_flight(place, interval)
    memories = microbatch_memory if isinstance(microbatch_memory, Sequence) else (microbatch_memory,)
    staying = layout.bytes(life="bucket") + layout.bytes(life="step") if scratch_stays else 0
    if len(memories) == 1 and not (_may_split(schedule) and schedule.split):
        held, waiting = None, _waiting(memories[0], schedule, place, interval, in_flight)
    else:
        held, waiting = (
            _held(memories, schedule, place, interval),
            _waiting_of_stages(memories, schedule, place, interval),
        )
    return Budget(
        layout=layout,
        activations=max(memory.saved for memory in memories),
        in_flight=in_flight,
        working=max(memory.transient for memory in memories),
        waiting=waiting + staying,
        extra_versions=extra_versions * layout.read.bytes,
        reducing=reducing,
        overlaps_step=overlaps_step,
        drains=interval.update_interval is None,
        held=held,
    )


def _waiting(memory: StageMemory, schedule: Schedule, place: Place, interval: FlushInterval, in_flight: int) -> int:
    """Bytes of received messages of the only stage of a rank."""
    # a microbatch in flight on the previous stage is in flight here too, or its message waits here, or its gradient is
    # on its way back
    before = 0 if place.first else schedule.in_flight(replace(place, rank=place.rank - 1), interval)
    return max(0, before - in_flight) * memory.input


def _held(memories: Sequence[StageMemory], schedule: Schedule, place: Place, interval: FlushInterval) -> int:
    """Most bytes of activations and owed weight gradients at once."""
    return max(
        sum(
            started * memory.saved + owed * memory.owed
            for started, owed, memory in zip(state.started, state.owed, memories, strict=True)
        )
        for state in held_states(schedule, place, interval)
    )


def _waiting_of_stages(
    memories: Sequence[StageMemory], schedule: Schedule, place: Place, interval: FlushInterval
) -> int:
    """Bytes of received messages of all stages of a rank, each counted as for a rank with a single stage.

    The previous stage of a stage may be on the same rank, whose messages have no copy.
    """
    most: dict[int, dict[int, int]] = {}  # forward passes in flight by rank and stage
    waiting = 0
    for stage, memory in zip(place.held_stages, memories, strict=True):
        if stage == 0 or place.rank_of(stage - 1) == place.rank:
            continue
        for rank in (place.rank, place.rank_of(stage - 1)):
            if rank not in most:
                there = replace(place, rank=rank)
                states = held_states(schedule, there, interval)
                counts = [max(state.started[chunk] for state in states) for chunk in range(len(there.held_stages))]
                most[rank] = dict(zip(there.held_stages, counts, strict=True))
        before, here = most[place.rank_of(stage - 1)][stage - 1], most[place.rank][stage]
        waiting += max(0, before - here) * memory.input
    return waiting
