"""Decides how a test changes one value of a resolved config and leaves the config as it was."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def altered(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """`base` with values at dotted paths (written with __) replaced."""
    config = copy.deepcopy(dict(base))
    for path, value in changes.items():
        *groups, leaf = path.split("__")
        at = config
        for group in groups:
            at = at[group]
        at[leaf] = value
    return config
