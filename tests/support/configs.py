"""Configurations with single values changed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from suite.config.run import RunConfig


def altered(base: RunConfig, **changes: Any) -> RunConfig:
    """`base` with values at dotted paths (written with __) replaced."""
    return base.changed({path.replace("__", "."): value for path, value in changes.items()})


def unchecked(base: RunConfig | Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `base` with values at dotted paths replaced, legal or not."""
    data: dict[str, Any] = deepcopy(base.plain() if isinstance(base, RunConfig) else dict(base))
    for path, value in changes.items():
        *groups, name = path.split(".")
        group = data
        for each in groups:
            group = group.setdefault(each, {})
        group[name] = value
    return data
