"""Memory budget of one pipeline stage.

The prediction of a run (suite.runner.estimate), the simulation of layers (suite.simulate.layer_model) and the planning
of a GPT's blocks (suite.simulate.block_model) count the bytes of one microbatch in different ways. How many
microbatches, waiting messages and weight versions a rank holds is decided here alone, so that no account omits a term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from suite.core.op import FlushInterval, Place
from suite.core.protocols import Schedule
from suite.memory.budget import Budget
from suite.memory.layout import Layout


class StageMemory(Protocol):
    """Bytes of one microbatch on one stage (suite.workload.stage_memory.MicrobatchMemory).

    Attributes:
        saved: Bytes saved until the backward pass.
        transient: Largest transient of a pass, in addition to saved bytes.
        input: Bytes of the message that the stage receives; 0 on the first stage.
    """

    @property
    def saved(self) -> int: ...

    @property
    def transient(self) -> int: ...

    @property
    def input(self) -> int: ...


def stage_budget(
    layout: Layout,
    microbatch_memory: StageMemory,
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

    Args:
        layout: Model states of the rank.
        microbatch_memory: Bytes of one microbatch.
        schedule: Order of passes; bounds the microbatches in flight.
        place: Stage and replica of the rank.
        interval: Microbatches between two drains. Without `update_interval` the pipeline drains before its update.
        extra_versions: Copies of the weights that passes read, in addition to the newest.
        reducing: Bytes that a gradient reduction allocates.
        overlaps_step: Whether an optimizer step runs during a reduction.
        scratch_stays: Whether the scratch of an update stays allocated between updates. It then counts as `waiting`.
    """
    in_flight = schedule.in_flight(place, interval)
    # a microbatch in flight on the previous stage is in flight here too, or its message waits here, or its gradient is
    # on its way back
    before = 0 if place.first else schedule.in_flight(replace(place, rank=place.rank - 1), interval)
    staying = layout.bytes(life="bucket") + layout.bytes(life="step") if scratch_stays else 0
    return Budget(
        layout=layout,
        activations=microbatch_memory.saved,
        in_flight=in_flight,
        working=microbatch_memory.transient,
        waiting=max(0, before - in_flight) * microbatch_memory.input + staying,
        extra_versions=extra_versions * layout.read.bytes,
        reducing=reducing,
        overlaps_step=overlaps_step,
        drains=interval.update_interval is None,
    )
