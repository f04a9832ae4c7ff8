"""Bounds of numbers as type annotations, for Python users and configurations.

@dataclass(frozen=True)
class Link:
    latency: NonNegative
    bandwidth: Positive

    def __post_init__(self) -> None:
        check_bounds(self)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from suite.core.errors import InvalidRequest
from suite.core.values import is_number


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval of finite numbers.

    Attributes:
        rule: Rule in words, for error messages.
        legal: Legal value, as a user types it.
        least: Lower bound; part of the interval unless `above` is true.
        below: Upper bound, outside the interval; None for an interval without an upper bound.
        above: Whether `least` is outside the interval.
    """

    rule: str
    legal: str
    least: float
    below: float | None = None
    above: bool = False

    def hold(self, value: Any) -> bool:
        """Whether a value is a number inside the interval."""
        if not is_number(value) or (self.below is not None and not value < self.below):
            return False
        return bool(value > self.least if self.above else value >= self.least)


NonNegative = Annotated[float, Bounds("a finite number, at least 0", "1.0e-6", 0.0)]
Positive = Annotated[float, Bounds("a finite number above 0", "1.0", 0.0, above=True)]
UnitInterval = Annotated[float, Bounds("at least 0 and below 1", "0.5", 0.0, below=1.0)]


def check_bounds(owner: object) -> None:
    """Raises InvalidRequest for the first attribute of a dataclass outside the bounds of its annotation."""
    kind: Any = type(owner)
    for name, bounds in _bounded(kind).items():
        value = getattr(owner, name)
        if not bounds.hold(value):
            raise InvalidRequest(name, value, bounds.rule, f"{name}={bounds.legal}")


@cache
def _bounded(owner: Any) -> Mapping[str, Bounds]:
    hints = get_type_hints(owner, include_extras=True)
    return {name: each for name, hint in hints.items() for each in get_args(hint)[1:] if isinstance(each, Bounds)}
