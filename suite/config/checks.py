"""Check a composed configuration against the models, before its values are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suite.config.base import MAX_LAYERS, OnError, Rerun, Settings
from suite.config.commands import Draw
from suite.config.executor import reads_graphs
from suite.config.experiment import Runs
from suite.config.graphs import ExchangeConfig, GraphConfig, PartitionerConfig
from suite.config.plugins import Plugin
from suite.config.refusals import refusals
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.simulate.network.machine import Machine

GRAPHS = ("graph", "partitioner", "exchange")  # groups that only runs on a whole graph read
# groups of a composed configuration that are no part of a run
NOT_IN_RUN = ("draw", "machine", "efficiency")
G = TypeVar("G", bound=Settings)
Size = Annotated[int, Field(ge=1, le=10_000_000, examples=[1])]


class Sizes(BaseModel):
    """Sizes of any network. A shape has some of them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, examples=[1])] = 1
    hidden: Size = 1
    heads: Size = 1
    sequence: Size = 1
    vocabulary: Size = 1
    image: Size = 1
    colours: Size = 1
    classes: Size = 1


class ListedRuns(BaseModel):
    """The runs of an experiment."""

    model_config = ConfigDict(extra="ignore", strict=True)

    runs: Runs


class Listed(BaseModel):
    """Keys that decide which runs are made."""

    model_config = ConfigDict(extra="ignore", strict=True)

    experiment: ListedRuns
    rerun: Annotated[Rerun, Field(examples=["stale"])]
    on_error: Annotated[OnError, Field(examples=["record"])]


class Profiling(Settings):
    """Keys of `suite profile-split`, in addition to the keys of a run."""

    machine: Plugin[Machine]


class Drawing(Settings):
    """Keys of a drawing, in addition to the keys of a run."""

    draw: Draw
    graph: GraphConfig
    partitioner: PartitionerConfig
    exchange: ExchangeConfig


def faults(config: Mapping[str, Any]) -> Iterator[tuple[str, InvalidRequest]]:
    """Path and error of each key that is missing, unknown or has a wrong value, in the order of the models."""
    yield from _faults(RunConfig, settings_of(config))
    shape = config["model"].get("shape") if isinstance(config.get("model"), Mapping) else None
    if isinstance(shape, Mapping):
        yield from _faults(Sizes, shape, "model.shape")


def _faults(
    model: type[BaseModel], data: Any, at: str = "", keys: type[BaseModel] | None = None
) -> Iterator[tuple[str, InvalidRequest]]:
    """Faults of a group of keys. keys: model with the legal values for error messages, if it is another."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        yield from refusals(error, keys or model, at)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run of a composed configuration has."""
    excluded = NOT_IN_RUN if reads_graphs(config.get("executor")) else (*NOT_IN_RUN, *GRAPHS)
    return {key: value for key, value in config.items() if key not in excluded}


def checked_run(config: Mapping[str, Any]) -> RunConfig:
    """The typed configuration. Raises InvalidRequest for the first key that is missing, unknown or has a wrong
    value."""
    for _, refused in faults(config):
        raise refused
    return RunConfig.model_validate(settings_of(config))


def check_runs(config: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for an experiment whose runs are not lists of overrides, and for keys that choose runs."""
    for _, refused in _faults(Listed, config, keys=RunConfig):
        raise refused


def checked(model: type[G], config: Mapping[str, Any]) -> G:
    """Keys of a command, in addition to the keys of a run. Raises InvalidRequest for the first key with a wrong
    value.
    """
    data = {key: config.get(key) for key in model.model_fields}
    for _, refused in _faults(model, data):
        raise refused
    return model.model_validate(data)
