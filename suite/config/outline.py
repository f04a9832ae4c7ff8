"""Keys that even the record of a refused run needs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from suite.config.base import Name, Word
from suite.config.experiment import Executor, Experiment
from suite.config.system import System


class _Part(BaseModel):
    """A group of which only some keys are known to be well-formed."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class LaunchOutline(_Part):
    """Where a run would have started."""

    device: Name
    mpiexec: Name | None
    python_path: Annotated[list[str], Field(default_factory=list)]
    submit: bool = False


class DataOutline(_Part):
    """What a run would have read."""

    folder: Name | None


class Outline(_Part):
    """The keys of a run that every record needs. A refused run has them, whatever its other keys hold."""

    reports: Name
    rerun: Name = "stale"
    on_error: Name = "record"
    tag: Word = ""
    split: Name
    system: System
    experiment: Experiment
    executor: Executor
    launch: LaunchOutline
    data: DataOutline
