"""Read a frozen dataclass from plain data of JSON or YAML.

Records may come from untrusted sources, so every value is checked against the annotation of its field. The first value
of another type raises `InvalidRequest` with the field, the rule and a legal value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import is_number

MAX_CHARACTERS = 200  # of a text or a name; the rest is cut
T = TypeVar("T")


def read_dataclass(kind: type[T], data: Any, path: str) -> T:
    """An instance of a dataclass from a mapping of its fields. A field that is null takes its default.

    The fields may be text, booleans, finite numbers, and sequences, mappings and dataclasses of these. Older records
    hold a single text in place of a sequence; it is read as a sequence of one text.

    Args:
        kind: The dataclass.
        data: The mapping.
        path: Key of the mapping, which errors name.

    Raises:
        InvalidRequest: A field is missing or has a value of another type.
        UnknownName: The dataclass has no field of this name.
    """
    if not isinstance(data, Mapping):
        raise InvalidRequest(path, data, rule="a mapping")
    fields_by_name = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for name in data:
        if name not in fields_by_name:
            raise UnknownName("key", f"{path}.{name}"[:MAX_CHARACTERS], [f"{path}.{each}" for each in fields_by_name])
    hints = get_type_hints(kind)
    arguments = {
        name: _convert(hints[name], value, f"{path}.{name}") for name, value in data.items() if value is not None
    }
    for name, each in fields_by_name.items():
        if name not in arguments and each.default is MISSING and each.default_factory is MISSING:
            raise InvalidRequest(f"{path}.{name}", None, rule="required")
    return kind(**arguments)


_RULES = {str: "text", bool: "true or false", float: "a finite number", int: "a whole number"}


def _convert(hint: Any, value: Any, path: str) -> Any:
    """Convert `value` to the annotated type `hint`. Raises InvalidRequest for a value of another type."""
    origin, parameters = get_origin(hint), get_args(hint)
    if origin is UnionType:  # `T | None`
        return _convert(parameters[0], value, path)
    if is_dataclass(hint):
        return read_dataclass(hint, value, path)  # type: ignore[arg-type]
    if origin in (tuple, Sequence):
        return _convert_sequence(parameters, value, path)
    if isinstance(origin, type) and isinstance(value, Mapping):
        named = ((str(name)[:MAX_CHARACTERS], each) for name, each in value.items())
        return {name: _convert(parameters[1], each, f"{path}.{name}") for name, each in named}
    if not (is_number(value) if hint is float else type(value) is hint):
        raise InvalidRequest(path, value, rule=_RULES.get(hint, "a mapping"))
    return value.strip()[:MAX_CHARACTERS] if hint is str else hint(value)


def _convert_sequence(parameters: Sequence[Any], value: Any, path: str) -> tuple[Any, ...]:
    """A tuple of one type, or of a type for each element as in `tuple[str, int]`."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        raise InvalidRequest(path, value, rule="a list")
    hints = parameters if len(parameters) > 1 and parameters[1] is not Ellipsis else [parameters[0]] * len(values)
    if len(hints) != len(values):
        raise InvalidRequest(path, value, rule=f"a list of {len(hints)} values")
    if hints and all(hint is float for hint in hints):
        return tuple(_sample(each, path) for each in values)
    return tuple(
        _convert(hint, each, f"{path}.{place}") for place, (hint, each) in enumerate(zip(hints, values, strict=True))
    )


def _sample(value: Any, path: str) -> float:
    """A sample of a curve. null and numbers that are not finite become nan."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(path, value, rule="a list of numbers")
    return float(value) if is_number(value) else math.nan
