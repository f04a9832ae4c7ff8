"""Keys of commands that read more than a run does."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from suite.config.base import Name, Settings


class Draw(Settings):
    """Keys of `suite draw`."""

    microbatches: Annotated[int, Field(ge=1, le=1000, examples=[8])] = 8
    """Microbatches of the drawn batch."""
    forward: Annotated[int, Field(ge=1, le=100, examples=[1])] = 1
    """Ticks of a forward pass."""
    backward: Annotated[int, Field(ge=1, le=100, examples=[2])] = 2
    """Ticks of a whole backward pass: input gradient and weight gradient."""
    weight: Annotated[int, Field(ge=1, le=100, examples=[1])] = 1
    """Ticks of the weight gradient, where the schedule splits backward passes."""
    csv: Annotated[Name | None, Field(examples=[None])] = None
    """File to write the schedule to, in the CSV format of torch.distributed.pipelining; null: none."""
    csv_format: Annotated[Literal["compute_only", "compute_comms"], Field(examples=["compute_only"])] = "compute_only"
    """compute_only: passes alone; compute_comms: with messages, gathering and reduction."""
