"""Keys of how a run is measured, and of the checkpoints it continues from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from suite.config.base import Count, Duration, Name, Settings

Few = Annotated[int, Field(ge=0, le=1_000_000, examples=[0])]
Some = Annotated[int, Field(ge=1, le=1_000_000, examples=[1])]


class Measure(Settings):
    """Batches, their order in time, and validation."""

    warm_up: Few = 1
    """Batches before the first sample."""
    turns: Some = 5
    """Turns of each system: the systems of an experiment take turns, A B A B. A turn of an asynchronous system is a
    stream, from drain to drain."""
    settle: Few = 1
    """Batches at the start of a turn that are not timed: the caches hold another system's data."""
    batches: Some = 2
    """Samples per turn."""
    evaluate: Few = 2
    """Validation batches at the end; 0 for none."""
    validate_when: Annotated[Name, Field(alias="validate", examples=["end"])] = "end"
    """end: after the last turn; turn: after every turn too."""
    deadline: Duration = 120
    """Seconds for one turn."""


class Resume(Settings):
    """Checkpoints of a run, with which the same command continues after it was ended."""

    folder: Name | None = None
    """Folder of checkpoints, in a folder per run; null: none."""
    every: Count = 50
    """Batches between checkpoints."""
    keep: Count = 2
    """Newest checkpoints that stay."""
