"""Checks of a composed configuration against the models, before anything compares, adds or opens its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suite.config.base import MOST_LAYERS, Name, Settings
from suite.config.commands import Draw, Tune
from suite.config.experiment import Runs
from suite.config.graphs import Exchange, Graph, Partitioner
from suite.config.outline import Outline
from suite.config.plugins import Plugin
from suite.config.refusals import every_key, legal_value, refusals, shown
from suite.config.run import RunConfig
from suite.core.errors import Refused
from suite.simulate.machine import Machine

GRAPHS = ("graph", "partitioner", "exchange")  # groups that only runs on a whole graph read
# groups of a composed configuration that are no part of a run: executors that simulate hold their own machine
APART = ("draw", "tune", "machine", "stack")
# keys without which no record of a refused run can be written
NEEDED = (
    *("executor", "system", "system.name", "experiment.name", "experiment.seconds", "reports", "tag"),
    *("rerun", "on_error"),
    *("launch.device", "launch.mpiexec", "launch.python_path", "data.folder", "split", "precision.half"),
)
NEEDED_BELOW = ("executor.", "system.")
SIMULATION = "system.simulation"  # whose values may be those of other keys, and no record needs
# keys that a choice may leave out
NOT_ALWAYS = (
    *("unread", "graph", "graph.holdings", "partitioner", "exchange", "pruning.searches", "model.order", "model.epoch"),
    *("launch.memory_check", "launch.exclusive", "launch.submit", "launch.beat", "launch.silence", "launch.host"),
    *("launch.mpi", "launch.nodes", "launch.tasks_per_node", "launch.cpus_per_task", "launch.gpus_per_node"),
    *("launch.dry_run", "launch.time", "launch.partition", "launch.account", "launch.qos", "launch.constraint"),
    *("launch.array_parallelism", "launch.setup", "launch.extra"),
)
NOT_ALWAYS_BELOW = ("executor.", "system.")
G = TypeVar("G", bound=Settings)
Size = Annotated[int, Field(ge=1, le=10_000_000, examples=[1])]


class Sizes(BaseModel):
    """Sizes of a network, whatever its shape is. A shape has some of them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    layers: Annotated[int, Field(ge=1, le=MOST_LAYERS, examples=[1])] = 1
    hidden: Size = 1
    heads: Size = 1
    sequence: Size = 1
    vocabulary: Size = 1
    image: Size = 1
    colours: Size = 1
    classes: Size = 1


class Listing(BaseModel):
    """Keys that decide which runs are made."""

    model_config = ConfigDict(extra="ignore", strict=True)

    rerun: Name
    on_error: Name


class Listed(BaseModel):
    """The runs of an experiment."""

    model_config = ConfigDict(extra="ignore", strict=True)

    runs: Runs


class Tuning(Settings):
    """What the tuner reads besides the keys of a run."""

    tune: Tune


class Profiling(Settings):
    """What `python -m suite.partition` reads besides the keys of a run."""

    machine: Plugin[Machine]


class Drawing(Settings):
    """What a drawing reads besides the keys of a run."""

    draw: Draw
    graph: Graph
    partitioner: Partitioner
    exchange: Exchange


def faults(config: Mapping[str, Any]) -> Iterator[tuple[str, Refused]]:
    """Each key of a run that is missing, unknown or has a wrong value, with its refusal, in the order of the models."""
    run = settings_of(config)
    yield from _missing(run)
    yield from _faults(RunConfig, run)
    shape = config["model"].get("shape") if isinstance(config.get("model"), Mapping) else None
    if isinstance(shape, Mapping):
        yield from _faults(Sizes, shape, "model.shape")


def _missing(run: Mapping[str, Any]) -> Iterator[tuple[str, Refused]]:
    """Keys that every composed configuration has, and this one has not."""
    for path, info in every_key(RunConfig).items():
        *groups, key = path.split(".")
        group: Any = run
        for name in groups:
            group = group.get(name) if isinstance(group, Mapping) else None
        if not isinstance(group, Mapping) or key in group or path in NOT_ALWAYS or path.startswith(NOT_ALWAYS_BELOW):
            continue
        example = legal_value(info)
        legal = f"{path}={shown(example[0])}" if example else ""
        yield path, Refused(f"there is no {path}", rule="every key of conf/config.yaml", legal=legal)


def _faults(model: type[BaseModel], data: Any, at: str = "") -> Iterator[tuple[str, Refused]]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        yield from refusals(error, model, at)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run of a composed configuration has."""
    executor = config.get("executor")
    graphs = isinstance(executor, Mapping) and bool(executor.get("graphs"))
    apart = APART if graphs else (*APART, *GRAPHS)
    return {key: value for key, value in config.items() if key not in apart}


def checked_run(config: Mapping[str, Any]) -> RunConfig:
    """The typed configuration. Raises InvalidRequest for the first key that is missing, unknown or has a wrong
    value."""
    for _, refused in faults(config):
        raise refused
    return RunConfig.model_validate(settings_of(config))


def outline_of(config: Mapping[str, Any]) -> Outline:
    """The keys that every record needs. Raises InvalidRequest for one that is missing or has a wrong value."""
    for path, refused in faults(config):
        above = any(needed.startswith(f"{path}.") for needed in NEEDED)
        of_launch = path.startswith("launch.") and path in NOT_ALWAYS
        if path.startswith(SIMULATION):
            continue
        if above or of_launch or path in NEEDED or path.startswith(NEEDED_BELOW):
            raise refused
    system = {key: value for key, value in config["system"].items() if key != "simulation"}
    return Outline.model_validate({**config, "system": system})


def check_runs(config: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for an experiment whose runs are not lists of overrides, and for keys that choose runs."""
    for model, data, at in ((Listed, config["experiment"], "experiment"), (Listing, config, "")):
        for _, refused in _faults(model, data, at):
            raise refused


def checked(model: type[G], config: Mapping[str, Any]) -> G:
    """The keys of a command besides those of a run. Raises InvalidRequest for the first key with a wrong value."""
    data = {key: config.get(key) for key in model.model_fields}
    for _, refused in _faults(model, data):
        raise refused
    return model.model_validate(data)
