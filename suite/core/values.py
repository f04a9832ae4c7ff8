"""Plain values: a test for numbers, and their text on one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

# plain data of any shape, as JSON holds it: for code that flattens, hashes or compares it and knows no key
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Exact: TypeAlias = int | float | Fraction  # a number that formulas take as a fraction

MAX_CHARACTERS = 200  # of a text or a name on the page; the rest is cut
_WIDTH = 100  # characters


def leaves(data: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key without keys below it, with its value."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def is_number(value: Any) -> bool:
    """Whether `value` is a number within the range of a float. A config may hold integers of a thousand digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def format_typed(value: Any) -> str:
    """A plain value as it is typed on a command line, in at most a hundred characters."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return _short(str(value)) if isinstance(value, str) else format_value(value)


def format_value(value: Any) -> str:
    """The representation of a value on one line, in at most a hundred characters."""
    return _short(repr(value))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
