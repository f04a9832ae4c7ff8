"""Choices of the config groups: a file conf/GROUP/NAME.yaml, or an entry of a family, conf/GROUP/_FAMILY.yaml.

In a family each key is a choice with the values that its own file would have. Its `name` is its key. YAML anchors hold
what several have in common; a key with a leading underscore is no choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from suite.config.typed_yaml import read_typed
from suite.core.resources import conf_folder

CONF = conf_folder()
GLOBAL = "# @package _global_"  # first line of files whose keys are not those of their group
_NAMELESS = ("cost", "optimizer", "schedule", "weights")  # their classes take no name


@dataclass(frozen=True, slots=True)
class ChoiceContent:
    """Keys of a choice, before interpolation, and whether they are those of a whole configuration."""

    keys: Mapping[str, Any]
    is_global: bool


def choices_in(folder: Path) -> list[str]:
    """The names of the choices that a folder of a group has."""
    return sorted({*(file.stem for file in folder.glob("[!_]*.yaml")), *family_members(folder)})


def groups() -> dict[str, list[str]]:
    """The config groups and their choices."""
    return {folder.name: choices_in(folder) for folder in CONF.iterdir() if folder.is_dir()}


@cache
def family_members(folder: Path) -> Mapping[str, ChoiceContent]:
    """The choices in the families of a folder."""
    members = {}
    for file in sorted(folder.glob("_*.yaml")):
        is_global = file.read_text(encoding="utf-8").startswith(GLOBAL)
        named = not is_global and folder.name not in _NAMELESS
        for name, keys in read_typed(dict[str, dict[str, Any]], file).items():
            if not name.startswith("_"):
                members[name] = ChoiceContent({"name": name, **keys} if named else keys, is_global)
    return members


def content(group: str, name: str) -> ChoiceContent:
    """The content of a choice of conf/."""
    if member := family_members(CONF / group).get(name):
        return member
    file = CONF / group / f"{name}.yaml"
    return ChoiceContent(read_typed(dict[str, Any], file), file.read_text(encoding="utf-8").startswith(GLOBAL))
