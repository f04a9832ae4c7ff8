"""Places of plug-ins in a configuration, with the type that each requires.

Most types are the parameters of `Plugin[...]` in the models. The tables add groups with a model of their own, and the
calls of an object. A plug-in of another type is refused before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from suite.config.base import Settings
from suite.config.executor import ExecutorSettings
from suite.config.locate import PARTIAL, TARGET, locate
from suite.config.optimizer import OWN_KEYS
from suite.config.plugins import Plugin, arguments_of, check, located
from suite.config.protocols import (
    ExchangeMethod,
    Executor,
    GraphSource,
    Microbenchmark,
    PartitionMethod,
    System,
)
from suite.config.refusals import variants
from suite.config.results import check_call, check_class
from suite.config.run import RunConfig
from suite.core.protocols import UpdateRule


@dataclass(frozen=True, slots=True)
class PlugInPlace:
    """Requirements of a place.

    Attributes:
        required_type: Type of the built object.
        names: Argument names of a class that is built on the ranks.
        calls: Argument names of a function that is called later.
        group_keys: Keys of the group that are no arguments.
    """

    required_type: Any
    names: Sequence[str] = ()
    calls: Sequence[str] = ()
    group_keys: Sequence[str] = ()


def _in_models(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, PlugInPlace]]:
    """Plug-ins of the models by their keys. A member of a union has its kind after a colon: executor:check."""
    for name, info in model.model_fields.items():
        for kind, each in variants(info).items():
            yield from _in_models(each, f"{at}{name}:{kind}.")
        for option in () if variants(info) else (info.annotation, *get_args(info.annotation)):
            if get_origin(option) is Plugin:
                yield f"{at}{name}", PlugInPlace(get_args(option)[0])
            elif isinstance(option, type) and issubclass(option, Settings):
                yield from _in_models(option, f"{at}{name}.")


_MODELS = dict(_in_models(RunConfig))
_EXECUTOR_KEYS = tuple(ExecutorSettings.model_fields)
OF_DATA = {
    "data.source": _MODELS["data.source"]
}  # its module may need a package that is only installed where data are read
OF_RANKS = {  # their modules import torch
    "optimizer": PlugInPlace(UpdateRule, group_keys=OWN_KEYS),
    "pruning.ticket": _MODELS["pruning.ticket"],
    "system": PlugInPlace(System, names=("world", "config")),
    "exchange": PlugInPlace(ExchangeMethod, names=("block", "world", "recorder", "dtype")),
}
PLACES = {  # their modules import no torch
    **{key: place for key, place in _MODELS.items() if key not in (*OF_RANKS, *OF_DATA)},
    "memory.layout": replace(_MODELS["memory.layout"], calls=("entries", "moments", "dtype", "half")),
    "system.simulation.layout": replace(_MODELS["system.simulation.layout"], calls=("entries", "moments", "dtype")),
    "executor:plugin": PlugInPlace(Executor, group_keys=(*_EXECUTOR_KEYS, "graphs")),
    "executor:plugin.stand_ins.*.source": PlugInPlace(GraphSource),
    "executor:microbenchmark": PlugInPlace(Microbenchmark, group_keys=_EXECUTOR_KEYS),
    "partitioner": PlugInPlace(PartitionMethod, group_keys=("name",)),
}


def check_parts(config: Mapping[str, Any], places: Mapping[str, PlugInPlace] = PLACES) -> None:
    """Raises InvalidRequest for the first plug-in of another type than its place requires, or with wrong arguments."""
    for pattern, place in places.items():
        for key, value in values_at(config, pattern.split(".")):
            if isinstance(value, str):
                check_class(key, value, located(key, value), place.required_type, place.names)
            elif isinstance(value, Mapping) and TARGET in value and place.names:
                path, full = str(value[TARGET]), f"{key}.{TARGET}"
                check_class(full, path, located(full, path), place.required_type, place.names)
            elif isinstance(value, Mapping) and TARGET in value:
                check(
                    key,
                    {name: each for name, each in value.items() if name not in place.group_keys},
                    place.required_type,
                )
                _check_calls(key, value, place.calls)


def values_at(config: Any, keys: Sequence[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value at each place. `*` matches every key of a group, and `group:kind` a group of that kind."""
    if not keys:
        yield path[1:], config
    elif isinstance(config, Mapping):
        name, _, kind = keys[0].partition(":")
        for key in config if name == "*" else {name} & config.keys():
            if not kind or (isinstance(config[key], Mapping) and config[key].get("kind") == kind):
                yield from values_at(config[key], keys[1:], f"{path}.{key}")


def _check_calls(key: str, value: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises InvalidRequest unless the function at a place can be called with arguments of these names."""
    target = locate(value[TARGET])
    later = bool(value.get(PARTIAL, False))
    if names and (later or isinstance(target, type)):
        already = [*arguments_of(value)] if later else ["self"]
        check_call(f"{key}={value[TARGET]}", target if later else target.__call__, {*already, *names})
