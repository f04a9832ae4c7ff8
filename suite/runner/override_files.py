"""Files of overrides: `@FILE` on a command line is replaced by the overrides in the YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest

TYPED = ("launch.mpiexec", "launch.python_path", "launch.setup", "launch.extra")  # keys that select programs or code


def read_files(overrides: Sequence[str]) -> list[str]:
    """Replace each `@FILE` by the list in the YAML file.

    Raises InvalidRequest for a file that is not a list of overrides, and for an override that selects programs or code.
    """
    expanded: list[str] = []
    for override in overrides:
        if not override.startswith("@"):
            expanded.append(override)
            continue
        values = read_typed(list[str], Path(override[1:]))
        if wrong := next(filter(_selects_code, values), None):
            rule = "only the command line selects programs and code, not a file"
            raise InvalidRequest(f"{override} holds {wrong}", rule=rule, legal=f"@FILE {wrong.partition('=')[0]}=...")
        expanded += values
    return expanded


def _selects_code(override: str) -> bool:
    """Whether an override selects a program or code. A file of overrides may come from another person."""
    key, _, value = override.strip().lstrip("+~").partition("=")
    return key.startswith(TYPED) or (key == "launch" and "{" in value)
