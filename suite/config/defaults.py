"""Default values of the configuration keys, from the models.

Hydra merges them below the YAML files, so that it knows every key that has a default. A group whose class takes further
keys (a system, a model, an executor) is left out: its YAML file holds all its keys. `optimizer` is no such group: its
YAML files name a rule, and the keys of its model belong to every rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from suite.config.base import READ_ONLY, Settings
from suite.config.commands import Draw, Tune
from suite.config.experiment import Specification
from suite.config.optimizer import Optimizer
from suite.config.run import RunConfig


@cache
def defaults() -> Mapping[str, Any]:
    """The default of every key of a run, of `suite draw` and of `suite tune`."""
    return {**defaults_of(RunConfig), "draw": defaults_of(Draw), "tune": defaults_of(Tune)}


def defaults_of(model: type[Settings]) -> dict[str, Any]:
    """The keys of a group with a default, by their names in YAML, including nested groups."""
    defaults: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        groups = [each for each in (info.annotation, *get_args(info.annotation)) if _is_group(each)]
        if groups:  # an executor is one of several models
            if len(groups) == 1 and _is_closed(groups[0]) and (below := defaults_of(groups[0])):
                defaults[info.alias or name] = below
        elif not info.is_required() and info.json_schema_extra != READ_ONLY.json_schema_extra:
            defaults[info.alias or name] = info.get_default(call_default_factory=True)
    return defaults


def completed(config: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A composed configuration in which a key that `~key` deleted has its default."""
    usual = defaults() if usual is None else usual
    values = {**usual, **config}
    return {
        key: completed(value, usual[key]) if _are_groups(value, usual.get(key)) else value
        for key, value in values.items()
    }


def without_defaults(config: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keys of a configuration whose values are not their defaults.

    An absent key and a key at its default make the same run: a record is found by what remains here.
    """
    usual = defaults() if usual is None else usual
    values: dict[str, Any] = {}
    for key, value in config.items():
        if _are_groups(value, usual.get(key)):
            if inside := without_defaults(value, usual[key]):
                values[key] = inside
        elif key not in usual or type(value) is not type(usual[key]) or value != usual[key]:
            values[key] = value
    return values


def _are_groups(value: Any, usual: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(usual, Mapping)


def _is_group(kind: Any) -> bool:
    """Whether a type is a group of keys. A specification is a value of its own, whose keys are given together."""
    return isinstance(kind, type) and issubclass(kind, Settings) and not issubclass(kind, Specification)


def _is_closed(group: type[Settings]) -> bool:
    """Whether the keys of the model belong to every choice of the group."""
    return group is Optimizer or group.model_config.get("extra") == "forbid"
