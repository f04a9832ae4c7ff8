"""Errors with key, value, rule and a legal value, from pydantic's validation errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import format_typed

_RULES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a group of keys",
    "model_type": "a group of keys",
    "model_attributes_type": "a group of keys",
    "finite_number": "a finite number",
}
_UNKNOWN, _MISSING = "extra_forbidden", "missing"
_NO_TAG, _UNKNOWN_TAG = "union_tag_not_found", "union_tag_invalid"
_TAGS = (_NO_TAG, _UNKNOWN_TAG)


def refusals(error: ValidationError, model: type[BaseModel], at: str = "") -> Iterator[tuple[str, InvalidRequest]]:
    """Path of the key and error of each fault in a group of keys.

    Args:
        error: Validation error of the group.
        model: Model of the group.
        at: Path of the group.
    """
    seen: set[str] = set()
    for each in error.errors(include_url=False):
        keys = [str(part) for part in each["loc"]]
        path = ".".join(filter(None, [at, *(key for key, _ in _fields(model, keys))]))
        if each["type"] in _TAGS:
            path += f".{each['ctx']['discriminator'].strip(chr(39))}"
        if path not in seen:
            seen.add(path)
            yield path, _refusal(each, model, keys, path)


def refusal(error: ValidationError, model: type[BaseModel], at: str = "") -> InvalidRequest:
    """Error of the first fault."""
    return next(refusals(error, model, at))[1]


def _refusal(fault: Any, model: type[BaseModel], keys: Sequence[str], path: str) -> InvalidRequest:
    info = field(model, keys)
    if fault["type"] in _TAGS:
        return _refusal_of_tag(fault, variants(info), path)
    if fault["type"] == _UNKNOWN:
        group = path.rpartition(".")[0]
        if refused := of_other_member(model, path, f"{path}={format_typed(fault['input'])}"):
            return refused
        return UnknownName(
            "config key", path, [f"{group}.{name}".lstrip(".") for name in names(model, keys[:-1])], legal=""
        )
    legal = _nearest(fault, info) or legal_value(info)
    if "legal" in fault.get("ctx", {}):
        return InvalidRequest(path, fault["input"], rule_of(fault), fault["ctx"]["legal"])
    advice = f"{path}={format_typed(legal[0])}" if legal else _legal_below(info, path)
    if fault["type"] == _MISSING:
        return InvalidRequest(f"there is no {path}", rule=_requirement(model, keys), legal=advice)
    rule = rule_of(fault)
    if info is not None and type(None) in get_args(info.annotation) and "null" not in rule:
        rule += ", or null"
    return InvalidRequest(path, fault["input"], rule, advice)


def of_other_member(model: type[BaseModel], path: str, what: str) -> InvalidRequest | None:
    """Error for a key of another member of a union than the selected one; None for other keys."""
    for name, info in model.model_fields.items():
        for tag, each in variants(info).items():
            if path in every_key(each, name):
                selecting = f"{name}.{info.discriminator}"
                return InvalidRequest(what, rule=f"runs with {selecting}={tag} have this key", legal=f"{name}={tag}")
    return None


def _requirement(model: type[BaseModel], keys: Sequence[str]) -> str:
    """Why a missing key is required: by every run, or by the selected member of a union."""
    if any(key.isdecimal() for key in keys):
        return "every entry of this list has this key"
    for number, key in enumerate(keys):
        info = field(model, keys[:number]) if number else None
        if info is not None and key in variants(info):
            return f"{'.'.join(keys[:number])}.{info.discriminator}={key} requires it"
    return "every run has this key"


def _refusal_of_tag(fault: Any, tags: Mapping[str, Any], path: str) -> InvalidRequest:
    """Error for a group whose kind is missing or unknown."""
    if fault["type"] == _UNKNOWN_TAG:
        return UnknownName(path, fault["ctx"]["tag"], tags)
    return InvalidRequest(f"there is no {path}", rule=f"one of {', '.join(tags)}", legal=f"{path}={next(iter(tags))}")


def _legal_below(info: FieldInfo | None, path: str) -> str:
    """A key below a group with a legal value; empty for an unknown group."""
    group: Any = member(info.annotation) if info else None
    if info is not None and (tags := variants(info)):
        return f"{path}.{discriminator_of(info)}={next(iter(tags))}"
    if not _is_model(group):
        return ""
    below = ((name, legal_value(each)) for name, each in every_key(group, path).items())
    return next((f"{name}={format_typed(legal[0])}" for name, legal in below if legal), "")


def _nearest(fault: Any, info: FieldInfo | None) -> Sequence[str]:
    """The legal word nearest to the value; none for keys that are no words."""
    if info is None or fault["type"] != "literal_error" or not isinstance(fault["input"], str):
        return ()
    options = [each for option in (info.annotation, *get_args(info.annotation)) for each in get_args(option)]
    options += get_args(info.annotation)
    return get_close_matches(fault["input"], [each for each in options if isinstance(each, str)], n=1, cutoff=0.4)


def rule_of(error: Any) -> str:
    """Text of the rule that a value breaks."""
    kind, context = error["type"], error.get("ctx", {})
    bounds = {
        "greater_than_equal": ("ge", "at least"),
        "less_than_equal": ("le", "at most"),
        "greater_than": ("gt", "above"),
        "less_than": ("lt", "below"),
    }
    if kind in bounds:
        name, words = bounds[kind]
        return f"{words} {context[name]}"
    if kind == "literal_error":
        choices = re.findall("'([^']*)'", context["expected"])
        return f"one of {', '.join(choices)}"
    return _RULES.get(kind, str(error["msg"]))


def legal_value(info: FieldInfo | None) -> Sequence[Any]:
    """A legal value of a field, from its own examples or from its type; empty if no value is legal for every run."""
    if info is None:
        return ()
    annotated = [option for option in get_args(info.annotation) if get_origin(option) is Annotated]
    inner = [part for option in annotated for part in get_args(option)[1:]]
    examples = [info.examples, *(part.examples for part in inner if isinstance(part, FieldInfo))]
    if any(examples):
        return next(each for each in examples if each)
    return (info.default,) if isinstance(info.default, bool) else ()


def field(model: type[BaseModel], keys: Sequence[str]) -> FieldInfo | None:
    """The field at a path of keys; None if the path leaves the models.

    The path of a member of a union has the value of the discriminator after the key of the union, as in pydantic's
    errors.
    """
    return next(reversed([info for _, info in _fields(model, keys)]), None)


def _fields(model: type[BaseModel], keys: Sequence[str]) -> Iterator[tuple[str, FieldInfo | None]]:
    """Keys of a path without discriminator values, each with its field or, outside the models, the field above."""
    group: Any = model
    info: FieldInfo | None = None
    tags: Mapping[str, Any] = {}
    for key in keys:
        if key in tags:
            group, tags = tags[key], {}
            continue
        if key.isdecimal() and info is not None:  # place in a list of groups
            yield key, info
            continue
        if _is_model(group):
            info = next((each for name, each in group.model_fields.items() if key in (name, each.alias)), None)
        yield key, info
        group, tags = (member(info.annotation), variants(info)) if info else (None, {})


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def variants(info: FieldInfo | None) -> Mapping[str, type[BaseModel]]:
    """Models of a union by the value of its discriminator; empty for other fields."""
    if info is None or not (discriminator := discriminator_of(info)):
        return {}
    union = _annotated_element(info)[0] if get_origin(info.annotation) is list else info.annotation
    return {get_args(each.model_fields[discriminator].annotation)[0]: each for each in get_args(union)}


def discriminator_of(info: FieldInfo) -> str:
    """Discriminator of a field, or of the elements of its list; empty for other fields."""
    names = [info.discriminator]
    if get_origin(info.annotation) is list:
        names += [part.discriminator for part in _annotated_element(info)[1:] if isinstance(part, FieldInfo)]
    return next((name for name in names if isinstance(name, str)), "")


def _annotated_element(info: FieldInfo) -> Sequence[Any]:
    """Type of the elements of a list, followed by its annotations."""
    element = get_args(info.annotation)[0]
    return get_args(element) if get_origin(element) is Annotated else (element,)


def member(annotation: Any) -> Any:
    """The model in an annotation such as `Graph | None`."""
    options = [annotation, *get_args(annotation)]
    return next((each for each in options if _is_model(each)), annotation)


def names(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Keys of a group. keys: its path, as for `field`."""
    info = field(model, keys)
    tags = variants(info)
    group = tags[keys[-1]] if keys and keys[-1] in tags else member(info.annotation) if info else model
    return _own_names(group)


def _own_names(group: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in group.model_fields.items()]


def groups_of(info: FieldInfo) -> Sequence[type[BaseModel]]:
    """The models that a field may hold: none, one, or the members of a union. A list of groups holds none itself."""
    return [] if get_origin(info.annotation) is list else element_groups(info)


def element_groups(info: FieldInfo) -> Sequence[type[BaseModel]]:
    """The models that a field or an element of its list may hold."""
    below = member(info.annotation)
    return [*variants(info).values()] or ([below] if _is_model(below) else [])


def every_key(model: type[BaseModel], at: str = "", data: Any = None) -> Mapping[str, FieldInfo]:
    """Every key below a model by its path, groups included.

    Args:
        model: The model.
        at: Path of the model.
        data: Configuration whose values select the members of unions; by default all members are included.
    """
    fields: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        path = f"{at}.{info.alias or name}".lstrip(".")
        fields[path] = info
        below = data.get(info.alias or name) if isinstance(data, Mapping) else None
        chosen = below.get(info.discriminator) if isinstance(below, Mapping) and info.discriminator else None
        only = variants(info).get(str(chosen))
        for each in [only] if only else groups_of(info):
            fields |= every_key(each, path, below)
    return fields
