"""Default values of the configuration keys, from the models.

Hydra merges the YAML files over these defaults, so that it knows every key with a default. Groups whose class takes
further keys (system, model, executor) are left out, because their YAML files hold all their keys. `optimizer` is
included, because the keys of its model apply to every update rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from suite.config.base import READ_ONLY
from suite.config.optimizer import Optimizer
from suite.config.refusals import groups_of
from suite.config.run import RunConfig


@cache
def defaults() -> Mapping[str, Any]:
    """The default of every key of a run."""
    return defaults_of(RunConfig)


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a group with a default, by their names in YAML, including nested groups."""
    defaults: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if groups := groups_of(info.annotation):  # an executor is one of several models
            if len(groups) == 1 and _is_closed(groups[0]) and (below := defaults_of(groups[0])):
                defaults[info.alias or name] = below
        elif not info.is_required() and info.json_schema_extra != READ_ONLY.json_schema_extra:
            defaults[info.alias or name] = info.get_default(call_default_factory=True)
    return defaults


def without_defaults(config: Mapping[str, Any], default_values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Keys whose values are not their defaults.

    An absent key and a key at its default make the same run, so records are found by these keys.
    """
    default_values = defaults() if default_values is None else default_values
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and isinstance(default_values.get(key), Mapping):
            if group := without_defaults(value, default_values[key]):
                values[key] = group
        elif key not in default_values or type(value) is not type(default_values[key]) or value != default_values[key]:
            values[key] = value
    return values


def _is_closed(group: type[BaseModel]) -> bool:
    """Whether the keys of the model belong to every choice of the group."""
    return group is Optimizer or group.model_config.get("extra") == "forbid"
