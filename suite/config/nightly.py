"""Settings of nightly runs, from conf/nightly.yaml and the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from suite.config.base import Count, Line, Name, Settings, rule_error
from suite.config.refusals import validated
from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest
from suite.core.resources import conf_folder
from suite.core.values import Json

FILE = conf_folder() / "nightly.yaml"


def _command(command: str) -> str:
    words = shlex.split(command)
    if any(word.partition("=")[0] == "reports" or word.startswith("-") for word in words):
        raise rule_error("overrides alone, without reports, which nightly runs set")
    return command


def _date_as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value  # YAML reads the name of a nightly run as a date


Relative = Annotated[float, Field(ge=0.001, le=10.0)]
Command = Annotated[Line, Field(min_length=1), AfterValidator(_command)]
Commands = Annotated[list[Command], BeforeValidator(lambda value: value or [])]


class NightlySettings(Settings):
    """Commands of a nightly run, and criteria of a regression."""

    reports: Name
    """Folder with a folder per nightly run, and index.html."""
    repeated: Annotated[Commands, Field(examples=[["system=pytorch"]])]
    """Command lines of `suite run`; every repeat makes all of them, one after the other."""
    once: Annotated[Commands, Field(examples=[["system=pytorch"]])]
    """Command lines whose values do not depend on timing; they run once."""
    repeats: Annotated[int, Field(ge=1, le=1000)]
    """Repeats of each repeated command line."""
    metrics: Annotated[list[Name], Field(examples=[["batch_time"]])]
    """Timing metrics that are judged; counted metrics are always judged."""
    threshold: Relative
    """Smallest relative change that matters."""
    level: Annotated[float, Field(ge=1e-9, le=0.5, examples=[0.005])]
    """Probability of a false alarm in one nightly run, over all its metrics."""
    min_rounds: Annotated[int, Field(ge=4, le=40, examples=[12])]
    """Rounds of old and new code that decide a judged time; more for many metrics."""
    unpaired_threshold: Relative
    """Smallest relative change that counts if old code cannot run next to new code."""
    baseline: Annotated[Name | None, BeforeValidator(_date_as_text)] = None
    """Nightly run or folder of records to compare with in addition to the accepted baseline; null: none."""
    keep: Count
    """Nightly runs whose repeats are kept."""
    deadline: Annotated[float, Field(ge=1, le=864_000)]
    """Seconds for one command line."""

    @property
    def folder(self) -> Path:
        """Folder of nightly runs."""
        return Path(self.reports)

    @property
    def commands(self) -> list[str]:
        """Command lines of the first repeat."""
        return [*self.repeated, *self.once]

    def resume_key(self) -> dict[str, Json]:
        """Settings that must be equal for an interrupted nightly run to be resumed."""
        return self.model_dump(include={"repeated", "once", "repeats"})


def read(overrides: Sequence[str], file: Path = FILE) -> NightlySettings:
    """The settings of `file` with overrides `KEY=VALUE`. Raises InvalidRequest for a key or value that is not legal."""
    data = read_typed(dict[str, Any], file)
    for override in overrides:
        key, _, value = override.partition("=")
        try:
            data[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InvalidRequest(f"{override!r}", rule="VALUE is YAML", legal="repeated='[system=pytorch]'") from error
    return validated(NightlySettings, data)
