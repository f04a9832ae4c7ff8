"""Memory budget of one pipeline rank.

The prediction of a run (suite.runner.estimate), the simulation of layers (suite.simulate.layer_model) and the planning
of a GPT's blocks (suite.simulate.block_model) count the bytes of one microbatch in different ways. How many
microbatches, waiting messages and weight versions a rank holds is decided here alone, so that no account omits a term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

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

    Activations are the maximum over the states of the schedule (suite.memory.held_states), by the bytes of its stages.

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
    memories = microbatch_memory if isinstance(microbatch_memory, Sequence) else (microbatch_memory,)
    staying = layout.bytes(life="bucket") + layout.bytes(life="step") if scratch_stays else 0
    return Budget(
        layout=layout,
        activations=max(memory.saved for memory in memories),
        in_flight=schedule.in_flight(place, interval),
        working=max(memory.transient for memory in memories),
        waiting=_waiting(memories, schedule, place, interval) + staying,
        extra_versions=extra_versions * layout.read.bytes,
        reducing=reducing,
        overlaps_step=overlaps_step,
        drains=interval.update_interval is None,
        held=_held(memories, schedule, place, interval),
    )


def _held(memories: Sequence[StageMemory], schedule: Schedule, place: Place, interval: FlushInterval) -> int:
    """Most bytes of activations and owed weight gradients at once."""
    return max(
        sum(
            started * memory.saved + owed * memory.owed
            for started, owed, memory in zip(state.started, state.owed, memories, strict=True)
        )
        for state in held_states(schedule, place, interval)
    )


def _waiting(memories: Sequence[StageMemory], schedule: Schedule, place: Place, interval: FlushInterval) -> int:
    """Bytes of received messages of all stages of a rank, each counted as for a rank with a single stage.

    A microbatch in flight on the stage before is in flight here too, or its message waits here, or its gradient is on
    its way back. The stage before may be on the same rank, whose messages have no copy.
    """

    def started(rank: int) -> dict[int, int]:
        """Most forward passes in flight on each stage of a rank."""
        there = replace(place, rank=rank)
        states = held_states(schedule, there, interval)
        return {stage: max(state.started[chunk] for state in states) for chunk, stage in enumerate(there.held_stages)}

    most, waiting = {place.rank: started(place.rank)}, 0
    for stage, memory in zip(place.held_stages, memories, strict=True):
        before = place.rank_of(stage - 1) if stage else place.rank
        if before != place.rank:
            most[before] = most.get(before) or started(before)
            waiting += max(0, most[before][stage - 1] - most[place.rank][stage]) * memory.input
    return waiting
