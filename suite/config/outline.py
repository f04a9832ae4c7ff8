"""Keys that the record of a refused run needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from suite.config.base import Name, OnError, Rerun, Text, Word
from suite.config.executor import Sources, starts_ranks
from suite.config.experiment import Experiment
from suite.config.launch import Launch
from suite.config.system import SystemConfig


class _Part(BaseModel):
    """A group whose other keys may hold any value."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


def _claim(value: Any) -> Any:
    """The id of a claim, without its other keys."""
    return value.get("id") if isinstance(value, Mapping) and isinstance(value.get("id"), str) else None


class ExecutorOutline(_Part):
    """Executor of a refused run."""

    kind: Name
    name: Name | None = None
    label: Text | None = None
    sources: Sources
    claim: Annotated[str | None, BeforeValidator(_claim)] = None
    """Id of the claim that a microbenchmark answers."""

    @property
    def starts_ranks(self) -> bool:
        """Whether it starts ranks."""
        return starts_ranks(self.kind)


class LaunchOutline(Launch):
    """Launch of a refused run. A record may hold any value of the keys below."""

    model_config = ConfigDict(extra="ignore")

    name: Any
    launcher: Any
    device: Any
    threads: Any
    binding: Any
    max_ranks: Any
    memory_limit: Any
    deadline: Any
    grace: Any


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


class ScheduleOutline(_Part):
    """Schedule of a refused run."""

    file: Annotated[str | None, BeforeValidator(_text)] = None
    """Schedule file of torch.distributed.pipelining."""


def _group(value: Any) -> Any:
    return value if isinstance(value, Mapping) else {}


class DataOutline(_Part):
    """Data of a refused run."""

    folder: Name | None


class PrecisionOutline(_Part):
    """Number format of a refused run, which a record holds resolved."""

    half: Name | None


class Outline(_Part):
    """Keys that every record needs. The other keys of a refused run may hold any value."""

    reports: Name
    rerun: Rerun
    on_error: OnError
    tag: Word
    split: Name
    schedule: Annotated[ScheduleOutline, BeforeValidator(_group)]
    system: SystemConfig
    experiment: Experiment
    executor: ExecutorOutline
    launch: LaunchOutline
    data: DataOutline
    precision: PrecisionOutline
