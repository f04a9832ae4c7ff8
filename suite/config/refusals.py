"""Errors with key, value, rule and a legal value, from pydantic's validation errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import format_typed

_BY_TYPE: Mapping[Any, Any] = {  # a legal value of a key without example and default
    **{int: 1, float: 1.0, bool: True},
    **{list: [], Sequence: [], dict: {}, Mapping: {}},
}
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
        group = path.rpartition(".")[0]
        siblings = [_join(at, name) for name in keys if name.rpartition(".")[0] == group]
        other_kind = of_other_kind(model, path, f"{_join(at, path)}={format_typed(fault['input'])}")
        return other_kind or UnknownName("config key", _join(at, path), siblings, legal="")
    while place and place not in keys:  # the path leads into the value of a key
        place = place.rpartition(".")[0]
    if not place:
        return InvalidRequest(at or model.__name__, data, _rule(fault))
    key, info = _join(at, place), keys[place]
    rule = " or ".join(dict.fromkeys(_rule(each) for each in faults if _path(each, data) == path))
    if type(None) in get_args(info.annotation):
        rule += " or null"
    if place != path:
        rule = f"{path[len(place) + 1 :]}: {rule}"
    absent = place == path and fault["type"] in ("missing", "union_tag_not_found")
    value = None if absent else _value(data, place)
    words = _words(fault)
    near = get_close_matches(value, words, n=1, cutoff=0.4) if isinstance(value, str) else ()
    others = words if "tag" in fault["type"] else legal_value(info)
    legal = next((f"{key}={format_typed(each)}" for each in (*near, *others)), "")
    what = f"there is no {key}" if absent else ""
    return InvalidRequest(key, value, rule, legal, what=what)


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


def _words(fault: Any) -> list[str]:
    """The words that a key allows; none for a key that allows other values."""
    context = fault.get("ctx", {})
    return re.findall("'([^']*)'", context.get("expected") or context.get("expected_tags") or "")


def _rule(fault: Any) -> str:
    """Text of the rule that a value breaks."""
    words = _words(fault)
    if fault["type"] == "missing":
        return "a value, as it has no default"
    if fault["type"] == "is_instance_of":
        return {"Sequence": "a list", "Mapping": "a mapping"}.get(fault["ctx"]["class"], str(fault["msg"]))
    return f"one of {', '.join(words)}" if words else str(fault["msg"]).removeprefix("Input should be ")


def legal_value(info: FieldInfo) -> Sequence[Any]:
    """A legal value of a key: its example, its default, or a value of its type; empty if none is known."""
    if info.examples:
        return info.examples
    default, options = info.get_default(call_default_factory=True, validated_data={}), get_args(info.annotation)
    if isinstance(default, int | float | str | list | tuple) and default != "":
        return ([*default] if isinstance(default, list | tuple) else default,)
    if (default is None or type(None) in options) and not groups_of(info.annotation):
        return (None,)
    kind = info.annotation
    while get_origin(kind) in (Union, UnionType, Annotated):
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(((value,) for each, value in _BY_TYPE.items() if (get_origin(kind) or kind) is each), ())


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
