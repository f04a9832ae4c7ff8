"""Decides whether an argument that a config gives is of the kind that a class or function says it takes.

Annotations are what is known of an argument before it is used: text for a count, a fraction for a whole number or
not-a-number would otherwise fail far from where it was written, or not at all. They also say what a class or function
makes, so that a schedule where weights are asked for is refused before anything is made.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from suite.core.errors import Refused

_TOLD = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LEGAL = {int: "1", float: "1.0", bool: "true", str: ""}


def check_arguments(name: str, target: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises Refused for the first argument that is not what `target` is annotated with.

    name: what stands before the argument's name in the message, "path.of.its.group." or "class: "
    """
    hints = hints_of(target)
    for key, value in arguments.items():
        if key in hints and not fits(value, hints[key]):
            wanted = told(hints[key])
            given = shown(value) if isinstance(value, str) else typed(value)  # '5' is no number
            legal, group = example(target, key, hints[key]), "" if name.endswith(": ") else name
            what = f"{name}{key}={given}"
            error = Refused(what, rule=f"{key} is {wanted}", legal=legal and f"{group}{key}={legal}")
            error.keyed = True  # an argument of the class that the config names
            raise error


def example(target: Callable[..., Any], key: str, hint: Any) -> str:
    """A value that `target` accepts for `key`, as a command line types it: its default, or one of the annotated kind.

    Empty for text without a default, which may have to be one of a few names.
    """
    try:
        default = inspect.signature(target).parameters[key].default
    except (TypeError, ValueError, KeyError):
        default = inspect.Parameter.empty
    plain = default is None or isinstance(default, bool | int | float | str)
    return typed(default) if plain and fits(default, hint) else _legal(hint)


@cache
def hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Of what it takes, by name; none where the annotations name what is not there at run time."""
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
    if isinstance(hint, type) and _ours(hint):
        return not lacking(value, hint) if _is_protocol(hint) else isinstance(value, hint)
    return True


def never(target: Callable[..., Any], wanted: Any, *, partly: bool = False) -> str | None:
    """Why what `target` makes, called now or with `partly` later, is not of the kind `wanted`; None where it is, or
    where annotations do not tell."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return None
    if origin in (typing.Union, types.UnionType):
        reasons = [never(target, each, partly=partly) for each in inner]
        return None if None in reasons else reasons[0]
    if partly and Callable in (wanted, origin):
        return never(target, inner[-1]) if inner else None
    if partly:
        return f"{_one(wanted)}, which is made at once, without _partial_"
    kind = origin if origin is not None else wanted
    if kind is None:
        kind = type(None)
    if not isinstance(kind, type):
        return None
    reasons = [_other(made, kind) for made in _made_by(target)]
    return None if None in reasons or not reasons else f"{_one(wanted)}, and {reasons[0]}"


def parts(name: str, config: Any, wanted: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """What a config would have made, itself or the entries of its list or group, each with its name and kind."""
    inner = get_args(wanted)
    if isinstance(config, Mapping) and "_target_" in config:
        yield name, config, wanted
    elif isinstance(config, Mapping) and _holds(wanted, Mapping):
        for key, value in config.items():
            yield from parts(f"{name}.{key}", value, inner[1])
    elif isinstance(config, list | tuple) and _holds(wanted, Sequence) and len({*inner} - {Ellipsis}) == 1:
        for place, value in enumerate(config):
            yield from parts(f"{name}[{place}]", value, inner[0])


def _holds(wanted: Any, kind: type) -> bool:
    origin = get_origin(wanted)
    return isinstance(origin, type) and issubclass(origin, kind) and bool(get_args(wanted))


def _one(wanted: Any) -> str:
    """A kind, with its article."""
    name = told(wanted)
    return name if " " in name else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _other(made: type, kind: type) -> str | None:
    """Why a `made` is no `kind`."""
    if _is_protocol(kind):
        missing = lacking(made, kind)
        return f"{made.__name__} has no {' and no '.join(missing)}" if missing else None
    if issubclass(made, kind) or (kind is float and made is int):
        return None
    return f"what is made is {_one(made)}"


def lacking(value: Any, protocol: type) -> list[str]:
    """What of a protocol an object has not; of a class, its methods alone: others may be set as one is made."""
    found = []
    for part in (each for each in protocol.__mro__ if _is_protocol(each)):
        named = [*vars(part), *vars(part).get("__annotations__", {})]
        for name in dict.fromkeys(named):
            if name.startswith("_") and name != "__call__":
                continue
            method, of = callable(getattr(part, name, None)), isinstance(value, type)
            there = any(name in vars(each) for each in value.__mro__) if of else hasattr(value, name)
            if (method or not of) and not there:
                found.append(f"{name}()" if method else name)
    return found


def check_protocol(name: str, value: Any, protocol: type, legal: str) -> None:
    """Raises Refused unless the argument `name` is an object with everything that a protocol has."""
    if isinstance(value, type):
        raise Refused(f"{name}={value.__name__}, a class", rule="an object of it", legal=f"{name}={value.__name__}()")
    if missing := lacking(value, protocol):
        rule = f"an object with {', '.join(missing)}, as {protocol.__module__}.{protocol.__name__} has"
        raise Refused(f"{name}={shown(value)}", rule=rule, legal=f"{name}={legal}")


def _made_by(target: Callable[..., Any]) -> list[type]:
    """The classes that a call may give; none where it does not say."""
    if isinstance(target, type):
        return [target]
    try:
        hint = typing.get_type_hints(target).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return []
    union = get_origin(hint) in (typing.Union, types.UnionType)
    each = [get_origin(one) or one for one in (get_args(hint) if union else [hint])]
    known = [one for one in each if isinstance(one, type) and one is not Any]
    return known if len(known) == len(each) else []


def _is_protocol(kind: Any) -> bool:
    return bool(vars(kind).get("_is_protocol", False))


def _ours(kind: type) -> bool:
    return kind.__module__.startswith(("suite.", "baselines."))


def typed(value: Any) -> str:
    """A plain value as a command line types it, in a hundred characters."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return _short(str(value)) if isinstance(value, str) else shown(value)


def shown(value: Any) -> str:
    """A value on one line, in a hundred characters."""
    return _short(repr(value))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


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
    if Callable in (hint, origin):
        return "a function"
    return _TOLD.get(hint, str(getattr(hint, "__name__", hint)))


def _legal(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return "null" if type(None) in inner else _legal(inner[0])
    if origin is not None and isinstance(origin, type):
        return "{}" if issubclass(origin, Mapping) else "[]"
    return _LEGAL.get(hint, str(getattr(hint, "__name__", hint)))
