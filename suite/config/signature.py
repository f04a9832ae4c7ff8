"""Check the arguments of a plug-in against the signature of its class or function.

Each annotation becomes a strict pydantic type. A protocol requires its members; a class of the suite or of the user
requires an instance. Other classes are not checked, because a config cannot name them. A plug-in that is not built yet
has the type of its future object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from suite.config.annotations import (
    described,
    hints_of,
    is_callable,
    is_list,
    is_mapping,
    is_union,
    legal_text,
    plain,
)
from suite.config.base import rule_error
from suite.config.locate import ROOTS, TARGET, in_user_folder
from suite.config.refusals import rule_of
from suite.config.results import result_refusal
from suite.core.bounds import Bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.members import is_protocol, missing_members
from suite.core.values import format_typed, format_value

_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "rule")


def check_names(key: str, path: str, target: Callable[..., Any], names: Iterable[str], *, later: bool = False) -> None:
    """Raises InvalidRequest for an unknown argument of `target` and, unless `later`, for a missing one.

    Args:
        key: Key of the plug-in in the configuration; empty if unknown.
        path: Path of its class.
        target: The class or function.
        names: Names of the arguments.
        later: Whether more arguments follow when it is called.
    """
    names, parameters = {*names}, _parameters(target)
    if parameters is None:
        return
    by_name = {
        name: each for name, each in parameters.items() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    group = f"{key}." if key else ""
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        for name in sorted(names - by_name.keys()):
            if not by_name:
                raise _keyed(
                    InvalidRequest(
                        f"there is no {group}{name}", rule=f"{path} takes no arguments", legal=f"~{group}{name}"
                    )
                )
            legal_keys = [f"{group}{each}" for each in by_name]
            raise _keyed(UnknownName(f"argument of {path}", f"{group}{name}", legal_keys, legal=f"~{group}{name}"))
    for name in by_name if not later else ():
        if name not in names and by_name[name].default is inspect.Parameter.empty:
            hint = hints_of(target).get(name, Any)
            kind = "" if hint is Any else f", {described(hint)}"
            legal = legal_text(hint)
            what = f"there is no {group}{name}" if key else f"{path}: there is no {name}"
            error = InvalidRequest(what, rule=f"{path} requires it{kind}", legal=legal and f"{group}{name}={legal}")
            raise _keyed(error)


def check_values(key: str, path: str, target: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises InvalidRequest, with a legal value if one is known, for the first argument of another type."""
    hints = hints_of(target)
    for name, value in arguments.items():
        if name not in hints:
            continue
        try:
            _adapter(hints[name]).validate_python(value)
        except ValidationError as error:
            raise _keyed(_refusal(error, key, path, target, name, value)) from None


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type."""
    try:
        _adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def example(target: Callable[..., Any], name: str, hint: Any) -> str:
    """A legal value of an argument as typed on a command line: its default, or a value of its type.

    Empty for text without a default, which may have to be one of a few names.
    """
    parameter = (_parameters(target) or {}).get(name)
    default = parameter.default if parameter else inspect.Parameter.empty
    default = [*default] if isinstance(default, tuple) else default
    simple = default is None or isinstance(default, bool | int | float | str | list)
    return format_typed(default) if simple and fits(default, hint) else legal_text(hint)


@cache
def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters by name; None if the signature is unknown, as for a class written in C."""
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None


def _keyed(error: InvalidRequest) -> InvalidRequest:
    error.keyed = True  # it names keys of a config, not arguments
    return error


def _refusal(error: ValidationError, key: str, path: str, target: Any, name: str, value: Any) -> InvalidRequest:
    fault = error.errors(include_url=False)[0]
    full = f"{key}.{name}" if key else f"{path}: {name}"
    if fault["type"] == _PLUGIN:
        refused = result_refusal(f"{full}{_inside(value, fault['loc'])}", fault["input"], fault["ctx"]["required_type"])
        assert refused is not None
        return refused
    hint = hints_of(target)[name]
    rule = rule_of(fault) if fault["type"] in _BOUNDS and not is_union(plain(hint)) else described(hint)
    legal = _nearest(hint, value) or example(target, name, hint)
    entry = fault["loc"][0] if fault["loc"] else None
    if is_mapping(plain(hint)) and get_args(plain(hint)) and isinstance(value, Mapping) and entry in value:
        return _refusal_of_entry(full, plain(hint), str(entry), value[entry])
    value_text = _given(value)
    return InvalidRequest(
        f"{full}={value_text}", rule=f"{name} is {rule}", legal=legal and f"{key and f'{key}.'}{name}={legal}"
    )


def _nearest(hint: Any, value: Any) -> str:
    """The choice of a Literal nearest to a text; empty if no choice is near."""
    options = [
        each for part in (plain(hint), *get_args(plain(hint))) if get_origin(part) is Literal for each in get_args(part)
    ]
    near = (
        get_close_matches(value, [each for each in options if isinstance(each, str)], 1)
        if isinstance(value, str)
        else []
    )
    return format_typed(near[0]) if near else ""


def _refusal_of_entry(key: str, hint: Any, entry: str, value: Any) -> InvalidRequest:
    """Error for a value in a mapping."""
    inner = get_args(hint)[1]
    legal = legal_text(inner)
    full = f"{key}.{entry}"
    return InvalidRequest(
        f"{full}={_given(value)}", rule=f"{entry} is {described(inner)}", legal=legal and f"{full}={legal}"
    )


def _given(value: Any) -> str:
    return format_value(value) if isinstance(value, str) else format_typed(value)  # '5' is text


def _inside(value: Any, places: Sequence[int | str]) -> str:
    """Path of a fault within an argument, without the branches of unions that pydantic lists."""
    path = ""
    for place in places:
        if isinstance(value, Mapping) and place in value:
            path, value = f"{path}.{place}", value[place]
        elif isinstance(value, Sequence) and isinstance(place, int):
            path, value = f"{path}[{place}]", value[place]
    return path


# Annotations as pydantic types

_PLUGIN = "plugin"  # error type of a plug-in that returns another type


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return _cached(hint)
    except TypeError:  # bounds that cannot be hashed
        return TypeAdapter(_checked(hint))


@cache
def _cached(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_checked(hint))


def _checked(hint: Any) -> Any:
    """Strict type of values and of plug-ins that return them."""
    bounds: list[Any] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        bounds = [*(_interval(each) if isinstance(each, Bounds) else each for each in more), *bounds]
    hint = plain(hint)
    kind = _strict(hint)
    if kind is Any and not bounds:
        return Any
    return Annotated[(kind, *bounds, WrapValidator(partial(_plugin_or_value, hint)))]


def _interval(bounds: Bounds) -> AfterValidator:
    def check(value: Any) -> Any:
        if not bounds.hold(value):
            raise rule_error(bounds.rule)
        return value

    return AfterValidator(check)


def _plugin_or_value(hint: Any, value: Any, check: Callable[[Any], Any]) -> Any:
    if not (isinstance(value, Mapping) and TARGET in value):
        return check(value)
    if result_refusal("", value, hint):
        raise PydanticCustomError(_PLUGIN, "a plug-in of another type", {"required_type": hint})
    return value


def _strict(hint: Any) -> Any:
    """Pydantic type of an annotation; Any if it is not checked."""
    inner = get_args(hint)
    if hint is None or hint is type(None):
        return None
    if hint is float:
        return Annotated[float, Field(strict=True, allow_inf_nan=False)]
    if hint in (int, bool, str):
        return Annotated[hint, Field(strict=True)]
    if get_origin(hint) is Literal:
        return hint
    if is_union(hint):
        return Union[tuple(_checked(each) for each in inner)]  # noqa: UP007 - of a tuple
    if is_mapping(hint):
        return Annotated[dict[Any, _checked(inner[1]) if inner else Any], BeforeValidator(_mapping)]  # type: ignore[misc]
    if is_list(hint):
        return _list(hint)
    if is_callable(hint):
        return Callable
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and (kind.__module__.partition(".")[0] in ROOTS or in_user_folder(kind.__module__)):
        return Annotated[Any, AfterValidator(partial(_instance, kind))]
    return Any


def _list(hint: Any) -> Any:
    """Any sequence except text, as configurations have no tuples."""
    inner = get_args(hint)
    fixed = get_origin(hint) is tuple and Ellipsis not in inner
    kind: Any = list[_checked(inner[0])] if inner and not fixed else list[Any]  # type: ignore[misc]
    if fixed:
        return Annotated[tuple[tuple(_checked(each) for each in inner)], BeforeValidator(_tuple)]  # type: ignore[misc]
    return Annotated[kind, BeforeValidator(_sequence)]


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _other_type()
    return dict(value)


def _sequence(value: Any) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _other_type()
    return list(value)


def _tuple(value: Any) -> Any:
    return tuple(_sequence(value))


def _other_type() -> PydanticCustomError:
    """Error of a value for which the annotation is the rule."""
    return PydanticCustomError("other_type", "another type")


def _instance(kind: type, value: Any) -> Any:
    if missing_members(value, kind) if is_protocol(kind) else not isinstance(value, kind):
        raise _other_type()
    return value
