"""Files of overrides: `@FILE` on a command line is replaced by the overrides in the YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

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
        try:
            values = yaml.safe_load(Path(override[1:]).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InvalidRequest(
                f"{override}: {' '.join(str(error).split())}", rule="@FILE is a YAML list of overrides"
            ) from error
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise InvalidRequest(
                f"{override} holds no list of text", rule="@FILE is a YAML list of overrides", legal="- grid.inter=2"
            )
        for value in values:
            if _selects_code(value):
                raise InvalidRequest(
                    f"{override} holds {value}",
                    rule="only the command line selects programs and code, not a file",
                    legal=f"@FILE {value.partition('=')[0]}=...",
                )
        expanded += values
    return expanded


def _selects_code(override: str) -> bool:
    """Whether an override selects a program or code. A file of overrides may come from another person."""
    key, _, value = override.strip().lstrip("+~").partition("=")
    return key.startswith(TYPED) or (key == "launch" and "{" in value)
