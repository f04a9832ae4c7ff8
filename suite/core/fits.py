"""Decides whether an argument that a config gives is of the kind that a class or function says it takes.

Annotations are what is known of an argument before it is used: text for a count, a fraction for a whole number or
not-a-number would otherwise fail far from where it was written, or not at all.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from suite.core.errors import Refused

_TOLD = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LEGAL = {int: "1", float: "1.0", bool: "true", str: "'text'"}


def check_arguments(name: str, target: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises Refused for the first argument that is not what `target` is annotated with; name: its path"""
    hints = _hints(target)
    for key, value in arguments.items():
        if key in hints and not fits(value, hints[key]):
            wanted = told(hints[key])
            what = f"{name}: {key}={value!r}"
            raise Refused(what, rule=f"{key} is {wanted}", legal=f"{key}={_legal(hints[key])}")


@cache
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Of the parameters; none where the annotations name what is not there at run time."""
    made = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        return {key: hint for key, hint in typing.get_type_hints(made).items() if key != "return"}
    except (NameError, TypeError, AttributeError):
        return {}


def number(value: Any) -> bool:
    """Whether it is one, and not larger than a float can be: a config may hold whole numbers of a thousand digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the kind `hint`; what is more than numbers, text, lists and mappings is not looked into."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if hint is float:
        return number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Mapping):
            return isinstance(value, Mapping) and all(fits(each, inner[1]) for each in value.values())
        if issubclass(origin, Sequence):
            listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            of = [each for each in inner if each is not Ellipsis]
            uniform = len(of) == 1 and (origin is not tuple or len(inner) == 2)
            return listed and (not uniform or all(fits(each, of[0]) for each in value))
        if issubclass(origin, Callable):  # type: ignore[arg-type]
            return callable(value)
    if (
        isinstance(hint, type)
        and not hasattr(hint, "_is_protocol")
        and hint.__module__.startswith(("suite.", "baselines."))
    ):
        return isinstance(value, hint)
    return True


def told(hint: Any) -> str:
    """A hint in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if each is type(None) else told(each) for each in inner)
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Mapping):
            return f"a mapping, each value {told(inner[1])}"
        if issubclass(origin, Sequence):
            return f"a list, each entry {told(inner[0])}"
    return _TOLD.get(hint, str(getattr(hint, "__name__", hint)))


def _legal(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return "null" if type(None) in inner else _legal(inner[0])
    if origin is not None and isinstance(origin, type):
        return "{}" if issubclass(origin, Mapping) else "[]"
    return _LEGAL.get(hint, str(getattr(hint, "__name__", hint)))
