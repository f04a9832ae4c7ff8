"""Choices of the page, exported from conf/ and from a reports folder (suite.whatif.export).

`choices.json` next to the page holds them; the command line exports them anew. A choice names a class by its path, as
conf/ does. A question names a choice, so no word of a link names code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import Json, format_typed

TARGET, PARTIAL = "_target_", "_partial_"  # as in conf/
Catalogue = Mapping[str, Any]  # groups of choices by name: schedules, weights, models, machines, systems, ...


def chosen(catalogue: Catalogue, group: str, name: str) -> Any:
    """A choice of a group. Raises UnknownName with the nearest name."""
    if name not in catalogue[group]:
        raise UnknownName(group.removesuffix("s"), name, catalogue[group])
    return catalogue[group][name]


def build(data: Any, key: str = "", more: Mapping[str, Any] | None = None) -> Any:
    """The object of plain data whose `_target_` names its class, with the objects inside it.

    Args:
        data: Plain data of a choice.
        key: Key of the question, for messages.
        more: Arguments that replace those of the choice.

    Raises:
        InvalidRequest: The class has no such argument, or refuses its value.
    """
    if isinstance(data, list):
        return [build(each, key) for each in data]
    if not isinstance(data, Mapping):
        return data
    arguments = {name: build(value, key) for name, value in data.items() if name not in (TARGET, PARTIAL)}
    if unknown := next((name for name in more or {} if name not in arguments), None):
        raise UnknownName("key", f"{key}.{unknown}", [f"{key}.{name}" for name in arguments])
    for name, value in (more or {}).items():
        usual, kind = arguments[name], type(arguments[name])
        if usual is not None and type(value) not in (kind, *([int] if kind is float else [])):
            raise InvalidRequest(
                f"{key}.{name}", value, f"as {format_typed(usual)}", f"{key}.{name}={format_typed(usual)}"
            )
    arguments |= more or {}
    if TARGET not in data:
        return arguments
    module, _, name = str(data[TARGET]).rpartition(".")
    target = getattr(import_module(module), name)
    if data.get(PARTIAL):
        return partial(target, **arguments)
    try:
        return target(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"{key}: {error}", rule="arguments of the choice") from error


def arguments(catalogue: Catalogue, group: str, name: str) -> Mapping[str, Json]:
    """Plain arguments of the object of a choice, or of the schedule of a system; none for an unknown choice."""
    choice = catalogue[group].get(name, {})
    data, hidden = choice.get("schedule", choice), (TARGET, "name", "source")
    return {name: value for name, value in data.items() if name not in hidden and not isinstance(value, Mapping | list)}
