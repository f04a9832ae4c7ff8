"""Memory budget of one pipeline stage.

The prediction of a run (suite.runner.estimate), the simulation of layers (suite.simulate.layer_model) and the planning
of a GPT's blocks (suite.simulate.block_model) count the bytes of one microbatch in different ways. How many
microbatches, waiting messages and weight versions a rank then holds is decided here alone, so a term can be left out
only by its caller's own argument."""

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
        kept: Saved until its backward pass.
        working: The largest transient of a pass in addition to that.
        entering: The message that the stage receives for it, 0 on the first stage.
    """

    @property
    def kept(self) -> int: ...

    @property
    def working(self) -> int: ...

    @property
    def entering(self) -> int: ...


def stage_budget(
    layout: Layout,
    held: StageMemory,
    schedule: Schedule,
    place: Place,
    interval: FlushInterval,
    *,
    extra_versions: int,
    reducing: int,
    beside: bool,
    scratch_stays: bool,
) -> Budget:
    """The memory of one rank at `place`.

    Args:
        layout: model states of the rank.
        held: bytes of one microbatch.
        schedule, work: the order of passes, and the microbatches from drain to drain, which decide how many
            microbatches are in flight. A `work` without `update_interval` drains before its update.
        extra_versions: copies of the weights that passes read, in addition to the newest.
        reducing: bytes that a reduction of gradients allocates for itself.
        beside: whether an optimizer step runs during a reduction.
        scratch_stays: whether the scratch of an update stays allocated between updates. It is then counted with the
            activations, under `waiting`.

    Returns:
        The budget, in bytes on the device.
    """
    in_flight = schedule.in_flight(place, interval)
    # a microbatch that is open on the stage before is open here too, or its message waits here, or its gradient is on
    # the way back
    before = 0 if place.first else schedule.in_flight(replace(place, rank=place.rank - 1), interval)
    staying = layout.bytes(life="bucket") + layout.bytes(life="step") if scratch_stays else 0
    return Budget(
        layout=layout,
        activations=held.kept,
        in_flight=in_flight,
        working=held.working,
        waiting=max(0, before - in_flight) * held.entering + staying,
        extra_versions=extra_versions * layout.read.bytes,
        reducing=reducing,
        beside=beside,
        drains=interval.update_interval is None,
    )
