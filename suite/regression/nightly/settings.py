"""Settings of a nightly run, from conf/nightly.yaml and the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

import yaml

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.resources import conf_folder

FILE = conf_folder() / "nightly.yaml"


class ResumeKey(TypedDict):
    """The settings that have to be the same for a night that was ended to be resumed."""

    repeated: tuple[str, ...]
    once: tuple[str, ...]
    repeats: int


@dataclass(frozen=True, slots=True)
class NightlySettings:
    """As conf/nightly.yaml explains them."""

    reports: str
    repeated: tuple[str, ...]
    once: tuple[str, ...]
    repeats: int
    metrics: tuple[str, ...]
    threshold: float
    level: float
    pairs: int
    alone: float
    baseline: str | None
    keep: int
    deadline: float

    @property
    def folder(self) -> Path:
        return Path(self.reports)

    @property
    def commands(self) -> tuple[str, ...]:
        return (*self.repeated, *self.once)

    def plan(self) -> ResumeKey:
        """Settings that must be equal for a nightly run to be resumed."""
        return {"repeated": self.repeated, "once": self.once, "repeats": self.repeats}


_NUMBERS = {  # smallest and largest
    "repeats": (1, 1000),
    "threshold": (0.001, 10.0),
    "level": (1e-9, 0.5),
    "pairs": (4, 40),
    "alone": (0.001, 10.0),
    "keep": (1, 100_000),
    "deadline": (1, 864_000),
}
_LISTS = ("repeated", "once", "metrics")
_WHOLE = ("repeats", "pairs", "keep")


def read(overrides: Sequence[str], file: Path = FILE) -> NightlySettings:
    """Raises InvalidRequest for an unknown setting, or a value that no nightly run can have."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{file}: {' '.join(str(error).split())}", rule="a YAML mapping") from error
    keys = [field.name for field in fields(NightlySettings)]
    if not isinstance(data, dict):
        raise InvalidRequest(f"{file} holds {type(data).__name__}", rule="a YAML mapping")
    for override in overrides:
        key, sign, value = override.partition("=")
        if not sign:
            raise InvalidRequest(f"{override!r}", rule="KEY=VALUE", legal="repeats=10")
        try:
            data[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InvalidRequest(f"{override!r}", rule="VALUE is YAML", legal="repeated='[system=pytorch]'") from error
    for key in data:
        if key not in keys:
            raise UnknownName("setting of a night", str(key), keys)
    for key in keys:
        if key not in data:
            raise InvalidRequest(f"{file} has no {key}", rule=f"all of {', '.join(keys)}")
    return _checked(data)


def usual() -> NightlySettings:
    """Of the house."""
    return read([])


def _checked(data: dict[str, Any]) -> NightlySettings:
    for name, (least, most) in _NUMBERS.items():
        value = data[name]
        whole = name in _WHOLE
        number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not (number and least <= value <= most):
            kind = "a whole number" if whole else "a number"
            raise InvalidRequest(
                f"{name}={value!r}", rule=f"{kind} from {least:g} to {most:g}", legal=f"{name}={least:g}"
            )
    for name in _LISTS:
        value = data[name] or []
        if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
            raise InvalidRequest(f"{name}={value!r}", rule="a list of text", legal=f"{name}='[system=pytorch]'")
        data[name] = tuple(value)
    for command in (*data["repeated"], *data["once"]):
        split(command)
    if not (data["repeated"] or data["once"]):
        raise InvalidRequest("0 command lines", rule="repeated or once names one", legal="repeated='[system=pytorch]'")
    if isinstance(data["baseline"], date):  # as YAML reads a night's name
        data["baseline"] = data["baseline"].isoformat()
    if not isinstance(data["reports"], str) or not data["reports"]:
        raise InvalidRequest(f"reports={data['reports']!r}", rule="a folder", legal="reports=reports/nightly")
    if not (data["baseline"] is None or (isinstance(data["baseline"], str) and data["baseline"])):
        raise InvalidRequest(f"baseline={data['baseline']!r}", rule="a night, a folder or null", legal="baseline=null")
    return NightlySettings(**data)


def split(command: str) -> list[str]:
    """The overrides of one command line. `reports` is the night's own."""
    try:
        overrides = shlex.split(command)
    except ValueError as error:
        raise InvalidRequest(f"{command!r}: {error}", rule="overrides as in a shell", legal="system=pytorch") from error
    refused = [
        override for override in overrides if override.partition("=")[0] == "reports" or override.startswith("-")
    ]
    if refused:
        raise InvalidRequest(
            f"{command!r} holds {refused[0]}", rule="overrides alone, and not reports", legal="system=pytorch"
        )
    return overrides
