"""Types of annotated arguments and results, as text and with legal values."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from suite.core.bounds import Bounds
from suite.core.values import format_typed

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LEGAL = {int: "1", float: "1.0", bool: "true", str: ""}
LISTS = (list, tuple, Sequence)
MAPPINGS = (dict, Mapping)


@cache
def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Types of the arguments by name; empty if an annotation does not exist at run time."""
    call = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(call, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
    return {key: hint for key, hint in hints.items() if key != "return"}


@cache
def results_of(target: Callable[..., Any]) -> Sequence[type]:
    """Classes that a call may return; empty without annotations."""
    if isinstance(target, type):
        return [target]
    try:
        hint = typing.get_type_hints(target).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return []
    options = [get_origin(option) or option for option in (get_args(hint) if is_union(hint) else [hint])]
    types = [option for option in options if isinstance(option, type) and option is not Any]
    return types if len(types) == len(options) else []


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def is_mapping(hint: Any) -> bool:
    return hint in MAPPINGS or typing.is_typeddict(hint) or _is_generic(hint, Mapping)


def is_list(hint: Any) -> bool:
    return hint in LISTS or _is_generic(hint, Sequence)


def is_callable(hint: Any) -> bool:
    return Callable in (hint, get_origin(hint))


def _is_generic(hint: Any, kind: type) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, kind)


def plain(hint: Any) -> Any:
    """A type without the bounds of `Annotated` and without a `NewType`."""
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def described(hint: Any) -> str:
    """A type as text, with an article before a noun."""
    hint = plain(hint)
    inner = get_args(hint)
    if is_union(hint):
        return " or ".join("null" if each is type(None) else described(each) for each in inner)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(format_typed, inner))}"
    if is_mapping(hint):
        return f"a mapping, each value {described(inner[1])}" if inner else "a mapping"
    if is_list(hint):
        return f"a list, each entry {described(inner[0])}" if inner else "a list"
    if is_callable(hint):
        return "a function"
    return _WORDS.get(hint, str(getattr(hint, "__name__", hint)))


def with_article(hint: Any) -> str:
    name = described(hint)
    return name if " " in name else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def legal_text(hint: Any) -> str:
    """A value of a type as typed on a command line; empty if unknown, as text may have to be one of a few names."""
    if bounds := [each for each in get_args(hint)[1:] if isinstance(each, Bounds)]:
        return bounds[0].legal
    hint = plain(hint)
    inner = get_args(hint)
    if is_union(hint):
        return "null" if type(None) in inner else legal_text(inner[0])
    if get_origin(hint) is Literal:
        return format_typed(inner[0])
    if is_mapping(hint):
        return "{}"
    if is_list(hint):
        return "[]"
    return _LEGAL.get(hint, "")
