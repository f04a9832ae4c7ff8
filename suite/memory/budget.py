"""Peak memory of a rank: model states, activations in flight, weight versions and working set.

With a flush nothing is in flight during an update, so activations and the scratch of the update never coexist. Without
a drain they coexist, except for the microbatch whose backward pass precedes the update.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.memory.layout import Layout


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes on the device of one rank.

    Attributes:
        layout: Model states of the rank.
        activations: Bytes saved for the backward pass of one microbatch.
        in_flight: Microbatches whose activations are alive at once.
        held: Bytes of activations and of inputs and gradients for owed weight gradients, at their peak.
        working: Largest transient of a pass, in addition to saved activations.
        waiting: Bytes of received messages that are not yet used.
        extra_versions: Bytes of weight versions in addition to the newest.
        reducing: Bytes that a gradient reduction allocates.
        overlaps_step: Whether an optimizer step runs during a reduction.
        drains: Whether nothing is in flight during an update (a flush).
    """

    layout: Layout
    activations: int
    in_flight: int
    held: int
    working: int
    waiting: int = 0
    extra_versions: int = 0
    reducing: int = 0
    overlaps_step: bool = False
    drains: bool = True

    def by_kind(self) -> dict[str, int]:
        """Peak bytes by kind at the moment of the overall peak; they sum to `peak`."""
        kinds = dict(self.layout.by_kind())
        step = self.layout.bytes(life="step") + self.layout.bytes(life="bucket")
        scratch = step + self.reducing if self.overlaps_step else max(step, self.reducing)
        live = self.held + self.working + self.waiting
        if self.extra_versions:
            kinds["weights"] = kinds.get("weights", 0) + self.extra_versions
        if self.drains:
            kinds["activations" if live >= scratch else "scratch"] = max(live, scratch)
        else:
            open_still = self.activations * (self.in_flight - 1) + self.waiting
            stepping = open_still + scratch > live
            kinds["activations"], kinds["scratch"] = (open_still, scratch) if stepping else (live, 0)
        return kinds

    @property
    def peak(self) -> int:
        return sum(self.by_kind().values())
