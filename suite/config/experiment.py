"""Keys of an experiment, of a scale, and of the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from suite.config import protocols
from suite.config.base import Duration, Name, Ranks, Settings, Text, broken
from suite.config.plugins import build
from suite.core.errors import Refused


def _source_folders(value: Any) -> Any:
    """Only folders of this code decide what a run finds; others could be all of a disk."""
    listed = isinstance(value, list) and all(isinstance(each, str) for each in value)
    if not listed or not all(each.split("/")[0] in ("suite", "baselines") and ".." not in each for each in value):
        raise broken("a list of folders below suite or baselines")
    return value


def _claim(value: Any) -> Any:
    """The claim that a study of messages answers."""
    if value is None:
        return value
    keys: dict[str, Any] = {"id": str, "terms": list, "least": (int, float), "most": (int, float)}
    fits = isinstance(value, Mapping) and set(value) == set(keys)
    if not fits or not all(isinstance(value[key], kind) for key, kind in keys.items()):
        raise broken("a claim's id, terms, least and most bytes, or null")
    if not value["id"] or not all(isinstance(term, str) for term in value["terms"]):
        raise broken("a claim's id, terms, least and most bytes, or null")
    return value


class Executor(Settings):
    """What carries a run out. Each executor takes further keys."""

    model_config = ConfigDict(extra="allow")

    name: Name | None = None
    target: Annotated[Text | None, Field(alias="_target_")] = None
    """Class of an executor that starts no ranks."""
    label: Text | None = None
    """Names the run where a system and a grid do not."""
    sources: Annotated[
        Any, BeforeValidator(_source_folders), Field(default_factory=list, examples=[["suite/simulate"]])
    ]
    """Folders whose code decides the numbers, beside the ranks themselves."""
    ranks: Ranks | None = None
    """Processes that are started; null: one for each place of the grid."""
    graphs: bool = False
    """It reads the groups graph, partitioner and exchange."""
    claim: Annotated[Any, BeforeValidator(_claim)] = None
    """Claim that a study of messages answers."""
    system: Text | None = None
    """Class that ranks build in the place of the system."""
    prepares: Text | None = None
    """Class of what this process makes before ranks start."""
    replays: Text | None = None
    """Class that one process builds in the place of all ranks."""

    def build(self) -> protocols.Executor:
        """The object that carries the run out without ranks."""
        return build(self.plain())  # type: ignore[no-any-return]

    @property
    def stand_in(self) -> str:
        """Class that ranks build in the place of the system. Raises Refused where ranks build the system itself."""
        if self.system is None:
            raise Refused(f"executor={self.name}", rule="executor.system names a class", legal="executor=emulated")
        return self.system


def _runs(value: Any) -> Any:
    lists = isinstance(value, list) and all(isinstance(entry, list) for entry in value)
    if not lists or not all(isinstance(word, str) for entry in value for word in entry):
        raise broken("a list of lists of overrides")
    return value


class Experiment(Settings):
    """Runs that are compared, and what is expected of them. The report reads further keys."""

    model_config = ConfigDict(extra="allow")

    name: Name
    seconds: Duration
    """Seconds that the experiment is expected to take."""
    expect: Annotated[list[Any], Field(default_factory=list)]
    """Expectations that the report's page checks."""


class Scale(Settings):
    """Experiments of one `make reproduce`."""

    name: Name
    reproduce: list[Any]
    """Experiments with their overrides, in order."""


Runs = Annotated[Any, BeforeValidator(_runs)]
