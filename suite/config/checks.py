"""Check a composed configuration against the models, before its values are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from suite.config.base import MAX_LAYERS, OnError, Rerun
from suite.config.executor import reads_graphs
from suite.config.experiment import Runs
from suite.config.refusals import validated
from suite.config.run import RunConfig

GRAPHS = ("graph", "partitioner", "exchange")  # groups that only runs on a whole graph read
# groups of a composed configuration that are no part of a run
NOT_IN_RUN = ("machine", "efficiency")
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


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run of a composed configuration has."""
    excluded = NOT_IN_RUN if reads_graphs(config.get("executor")) else (*NOT_IN_RUN, *GRAPHS)
    return {key: value for key, value in config.items() if key not in excluded}


def checked_run(config: Mapping[str, Any]) -> RunConfig:
    """The typed configuration. Raises InvalidRequest for the first key that is missing, unknown or has a wrong
    value."""
    run = validated(RunConfig, settings_of(config))
    validated(Sizes, run.model.shape.arguments, "model.shape")
    return run


def check_runs(config: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for an experiment whose runs are not lists of overrides, and for keys that choose runs."""
    validated(Listed, config)
