"""Files of overrides: `@FILE` on a command line stands for the list that a YAML file holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from suite.core.errors import InvalidRequest

TYPED = ("launch.mpiexec", "launch.python_path", "launch.setup", "launch.extra")  # they say what is run


def read_files(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the list that a YAML file holds (suite.cli.tune writes one) for each `@FILE`. Raises
    InvalidRequest."""
    files: list[str] = []
    for override in overrides:
        if not override.startswith("@"):
            files.append(override)
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
            if _chooses_code(value):
                raise InvalidRequest(
                    f"{override} holds {value}",
                    rule="a file chooses no program and no code: that is typed",
                    legal=f"@FILE {value.partition('=')[0]}=...",
                )
        files += values
    return files


def _chooses_code(override: str) -> bool:
    """Whether an override says what is run: other people's files of overrides may be anything."""
    key, _, value = override.strip().lstrip("+~").partition("=")
    return key.startswith((*TYPED, "hydra")) or (key == "launch" and "{" in value)
