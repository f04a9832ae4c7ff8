"""Errors with key, value, rule and a legal value, from pydantic's validation errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import format_typed

_RULES: Mapping[str, str] = {  # by pydantic's type of error
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "none_required": "null",
    "finite_number": "a finite number",
    "callable_type": "a function",
    "missing": "required",
    **dict.fromkeys(("list_type", "tuple_type", "sequence_str", "is_instance_of"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a group of keys"),
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "above"),
    "less_than": ("lt", "below"),
}
_LEGAL: Mapping[Any, Any] = {int: 1, float: 1.0, bool: True, Sequence: [], Mapping: {}}  # by type without an example
_ABSENT = ("missing", "union_tag_not_found")
M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], data: Any, at: str = "") -> M:
    """The model of a group of keys. Raises InvalidRequest for the first fault. at: key of the group."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise refusal(error.errors(include_url=False), model, data, at) from error


def refusal(faults: Sequence[Any], model: type[BaseModel], data: Any, at: str = "") -> InvalidRequest:
    """The error for the first of pydantic's faults in the data of a model. at: key of the data."""
    fault, keys = faults[0], every_key(model, data=data)
    path = place = _path(fault, data)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(fault, model, keys, path, at)
    if fault["type"] == "union_tag_invalid":
        return UnknownName(_join(at, path), fault["ctx"]["tag"], _quoted(fault["ctx"]["expected_tags"]))
    while place and place not in keys:  # the path leads into the value of a key
        place = place.rpartition(".")[0]
    if not place:
        return InvalidRequest(at or model.__name__, data, _rule(fault))
    key, info = _join(at, place), keys[place]
    legal = next((f"{key}={format_typed(value)}" for value in (*_near(fault), *legal_value(info))), "")
    if fault["type"] in _ABSENT and place == path:
        owner = _join(at, place.rpartition(".")[0]) if "." in place else model.__name__
        return InvalidRequest(f"there is no {key}", rule=f"{owner} requires it", legal=legal)
    rule = " or ".join(dict.fromkeys(_rule(each) for each in faults if _path(each, data) == path))
    if type(None) in get_args(info.annotation) and "null" not in rule:
        rule += " or null"
    if place != path:
        return InvalidRequest(key, _value(data, place), f"{path[len(place) + 1 :]} is {rule}", legal)
    return InvalidRequest(key, fault["input"], rule, fault.get("ctx", {}).get("legal", legal))


def _unknown_key(
    fault: Any, model: type[BaseModel], keys: Mapping[str, FieldInfo], path: str, at: str
) -> InvalidRequest:
    key, (group, _, _) = _join(at, path), path.rpartition(".")
    if refused := of_other_kind(model, path, f"{key}={format_typed(fault['input'])}"):
        return refused
    parts = [name.rpartition(".") for name in keys]
    siblings = [_join(at, group, name) for parent, _, name in parts if parent == group]
    if not siblings:
        return InvalidRequest(f"there is no {key}", rule=f"{_join(at, group)} has no keys", legal=f"~{key}")
    return UnknownName("config key", key, siblings, legal="")


def of_other_kind(model: type[BaseModel], path: str, what: str) -> InvalidRequest | None:
    """Error for a key that another kind of a group has; None for other keys."""
    for name, info in model.model_fields.items():
        for group in groups_of(info.annotation):
            if path in every_key(group, name) and (kind := kind_of(group)):
                rule = f"runs with {name}.kind={kind} have this key"
                return InvalidRequest(what, rule=rule, legal=f"{name}={kind}")
    return None


def _join(*keys: str) -> str:
    return ".".join(filter(None, keys))


def _path(fault: Any, data: Any) -> str:
    """Key of a fault, without the branches of unions that pydantic lists."""
    keys: list[str] = []
    for place in fault["loc"]:
        if place in (data if isinstance(data, Mapping) else range(len(data)) if isinstance(data, list | tuple) else ()):
            keys.append(str(place))
            data = data[place]
    if fault["type"] == "missing":
        keys.append(str(fault["loc"][-1]))
    elif "discriminator" in fault.get("ctx", {}):
        keys.append(fault["ctx"]["discriminator"].strip("'"))
    return ".".join(keys)


def _value(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[int(key)] if isinstance(data, list | tuple) else data[key]
    return data


def _quoted(text: str) -> list[str]:
    """The words in quotes."""
    return re.findall("'([^']*)'", text)


def _near(fault: Any) -> Sequence[str]:
    """The legal word nearest to a value; none for keys that are no words."""
    if fault["type"] != "literal_error" or not isinstance(fault["input"], str):
        return ()
    return get_close_matches(fault["input"], _quoted(fault["ctx"]["expected"]), n=1, cutoff=0.4)


def _rule(fault: Any) -> str:
    """Text of the rule that a value breaks."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind == "literal_error":
        return f"one of {', '.join(_quoted(context['expected']))}"
    return _RULES.get(kind, str(fault["msg"]))


def legal_value(info: FieldInfo) -> Sequence[Any]:
    """A legal value of a key: its example, its default, or a value of its type; empty if none is known."""
    options = [info, *(part for option in get_args(info.annotation) for part in get_args(option)[1:])]
    if examples := next((each.examples for each in options if isinstance(each, FieldInfo) and each.examples), None):
        return examples
    plain = isinstance(info.default, int | float | str) and info.default != ""
    if plain or (info.default is None and not groups_of(info.annotation)):
        return (info.default,)
    if isinstance(info.default, list | tuple):
        return ([*info.default],)
    union = get_origin(info.annotation) in (Union, UnionType)
    kind = get_args(info.annotation)[0] if union else info.annotation
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(((value,) for each, value in _LEGAL.items() if (get_origin(kind) or kind) is each), ())


# -- models ----------------------------------------------------------------------------------------------------------


def groups_of(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation: none, one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [group for part in get_args(annotation) for group in groups_of(part)]


def kind_of(model: type[BaseModel]) -> str:
    """The value of `kind` that selects a member of a union; empty for other models."""
    words = get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
    return words[0] if len(words) == 1 else ""


def every_key(model: type[BaseModel], at: str = "", data: Any = None) -> dict[str, FieldInfo]:
    """Every key below a model by its path, groups included.

    Args:
        model: The model.
        at: Path of the model.
        data: Configuration whose values select the members of unions; by default all members are included.
    """
    fields: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        path = _join(at, info.alias or name)
        fields[path] = info
        below, groups = data.get(info.alias or name) if isinstance(data, Mapping) else None, groups_of(info.annotation)
        kind = below.get("kind") if isinstance(below, Mapping) else None
        for group in [group for group in groups if kind and kind_of(group) == kind] or groups:
            fields |= every_key(group, path, below)
    return fields
