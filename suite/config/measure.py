"""Keys of how a run is measured, and of the checkpoints it continues from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from suite.config.base import Count, Duration, Name, Settings

NonNegativeCount = Annotated[int, Field(ge=0, le=1_000_000, examples=[0])]
PositiveCount = Annotated[int, Field(ge=1, le=1_000_000, examples=[1])]


class Measure(Settings):
    """Batches, their order in time, and validation."""

    warm_up: NonNegativeCount = 1
    """Batches before the first sample."""
    rounds: PositiveCount = 5
    """Rounds of each system: those of an experiment's systems are interleaved, A B A B. A round of an asynchronous
    system is a stream, from drain to drain: a round of many epochs only drains at its end."""
    discard_first: NonNegativeCount = 1
    """Batches at the start of a round that are not timed: the caches hold another system's data."""
    batches: PositiveCount = 2
    """Samples per round."""
    eval_batches: NonNegativeCount = 2
    """Validation batches at the end; 0 for none."""
    validate_when: Annotated[Literal["end", "every_round"], Field(alias="validate", examples=["end"])] = "end"
    """end: after the last round; every_round: after every round too."""
    deadline: Duration = 120
    """Seconds for one round."""


class Checkpoint(Settings):
    """Checkpoints of a run, with which the same command continues after it was ended."""

    folder: Name | None = None
    """Folder of checkpoints, in a folder per run; null: none."""
    every: Count = 50
    """Batches between checkpoints."""
    keep: Count = 2
    """Newest checkpoints that stay."""
