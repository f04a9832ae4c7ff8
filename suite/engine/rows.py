"""Decides which rows of a batch are whose: chunk (microbatch * replicas + replica) of `microbatch` rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from suite.core.errors import Refused
from suite.core.op import Place
from suite.core.protocols import Value


@dataclass(frozen=True, slots=True)
class Rows:
    """What one rank takes of batches whose samples lie in the first dimension.

    microbatch: samples; half: the type that inputs of the first stage are computed in, None for their own
    """

    place: Place
    microbatch: int
    device: torch.device
    half: torch.dtype | None = None

    def count(self, inputs: Value) -> int:
        """Microbatches per replica in a batch; Refused where they do not divide it."""
        samples, chunk = inputs[0].shape[0], self.microbatch * self.place.replicas
        if samples == 0 or samples % chunk:
            raise Refused(
                f"a batch of {samples} samples on {self.place.replicas} replicas of microbatch {self.microbatch}",
                rule="replicas * microbatch divides the batch",
                legal=f"a batch of {max(1, samples // chunk) * chunk}",
            )
        return int(samples // chunk)

    def of(self, parts: Value, index: int) -> Value:
        """The rows of the batch's microbatch `index` on this replica."""
        start = (index * self.place.replicas + self.place.replica) * self.microbatch
        return tuple(part[start : start + self.microbatch].to(self.device) for part in parts)

    def inputs(self, parts: Value, index: int) -> Value:
        """Those rows where they enter the first stage."""
        rows = self.of(parts, index)
        return tuple(row.to(self.half) if row.is_floating_point() else row for row in rows) if self.half else rows
