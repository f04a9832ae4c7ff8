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
    """Rounds of each system. The rounds of an experiment's systems are interleaved, A B A B. An asynchronous system
    trains without draining during a round, and drains at the end of the round."""
    discard_first: NonNegativeCount = 1
    """Batches at the start of a round that are not timed, because the caches hold another system's data."""
    batches: PositiveCount = 2
    """Samples per round."""
    eval_batches: NonNegativeCount = 2
    """Validation batches at the end; 0 for none."""
    validate_when: Annotated[Literal["end", "every_round"], Field(alias="validate", examples=["end"])] = "end"
    """end: after the last round; every_round: after every round too."""
    deadline: Duration = 120
    """Seconds for one round, or more where batches before it took long: five times as long as these."""


class Checkpoint(Settings):
    """Checkpoints, from which the same command continues an interrupted run."""

    folder: Name | None = None
    """Folder with a folder of checkpoints for each run; null: no checkpoints."""
    every: Count = 50
    """Batches between checkpoints."""
    keep: Count = 2
    """Number of the newest checkpoints to keep."""
