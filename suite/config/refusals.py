"""Refusals from pydantic's validation errors: key, value, rule and a legal value in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from suite.core.errors import Refused, UnknownName
from suite.core.values import typed

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


def refusals(error: ValidationError, model: type[BaseModel], at: str = "") -> Iterator[tuple[str, Refused]]:
    """Each fault of a group of keys: the path of its key, and the refusal. at: the path of the group itself."""
    seen: set[str] = set()
    for each in error.errors(include_url=False):
        keys = [str(part) for part in each["loc"]]
        path = ".".join([at, *keys] if at else keys)
        if path not in seen:
            seen.add(path)
            yield path, _refusal(each, model, keys, path)


def refusal(error: ValidationError, model: type[BaseModel], at: str = "") -> Refused:
    """The refusal of the first fault."""
    return next(refusals(error, model, at))[1]


def _refusal(fault: Any, model: type[BaseModel], keys: Sequence[str], path: str) -> Refused:
    if fault["type"] == _UNKNOWN:
        group = path.rpartition(".")[0]
        return UnknownName(
            "config key", path, [f"{group}.{name}".lstrip(".") for name in names(model, keys[:-1])], legal=""
        )
    info = field(model, keys)
    legal = legal_value(info)
    legal = f"{path}={shown(legal[0])}" if legal else _legal_below(info, path)
    if fault["type"] == _MISSING:
        return Refused(f"there is no {path}", rule="every run has this key", legal=legal)
    rule = rule_of(fault)
    if info is not None and type(None) in get_args(info.annotation) and "null" not in rule:
        rule += ", or null"
    return Refused(f"{path}={shown(fault['input'])}", rule=rule, legal=legal)


def _legal_below(info: FieldInfo | None, path: str) -> str:
    """A legal value of a key of a group; empty for what is no group."""
    group = member(info.annotation) if info else None
    if not (isinstance(group, type) and issubclass(group, BaseModel)):
        return ""
    below = ((name, legal_value(each)) for name, each in every_key(group, path).items())
    return next((f"{name}={shown(legal[0])}" for name, legal in below if legal), "")


def rule_of(error: Any) -> str:
    """The rule that a value breaks, in words."""
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
        return f"one of {context['expected']}"
    return _RULES.get(kind, str(error["msg"]))


def legal_value(info: FieldInfo | None) -> Sequence[Any]:
    """A legal value of a field, which its type may name too; empty where none would do for every run."""
    if info is None:
        return ()
    inner = [part for option in get_args(info.annotation) for part in getattr(option, "__metadata__", ())]
    examples = [info.examples, *(part.examples for part in inner if isinstance(part, FieldInfo))]
    if any(examples):
        return next(each for each in examples if each)
    return (info.default,) if isinstance(info.default, bool) else ()


def shown(value: Any) -> str:
    """A value as it is typed on a command line."""
    return typed(value)


def field(model: type[BaseModel], keys: Sequence[str]) -> FieldInfo | None:
    """The field at a path of keys; None where the path every_key the models."""
    group: Any = model
    info: FieldInfo | None = None
    for key in keys:
        if not (isinstance(group, type) and issubclass(group, BaseModel)):
            return info
        info = next((each for name, each in group.model_fields.items() if key in (name, each.alias)), None)
        if info is None:
            return None
        group = member(info.annotation)
    return info


def member(annotation: Any) -> Any:
    """The model in an annotation such as `Graph | None`."""
    options = [annotation, *get_args(annotation)]
    return next((each for each in options if isinstance(each, type) and issubclass(each, BaseModel)), annotation)


def names(model: type[BaseModel], keys: Iterable[str]) -> list[str]:
    """The keys that a group has."""
    group: Any = model
    for key in keys:
        info = next(each for name, each in group.model_fields.items() if key in (name, each.alias))
        group = member(info.annotation)
    return [info.alias or name for name, info in group.model_fields.items()]


def every_key(model: type[BaseModel], at: str = "") -> Mapping[str, FieldInfo]:
    """Every key below a model by its path, groups included."""
    found: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        path = f"{at}.{info.alias or name}".lstrip(".")
        found[path] = info
        below = member(info.annotation)
        if isinstance(below, type) and issubclass(below, BaseModel):
            found |= every_key(below, path)
    return found
