"""Bounds of numbers as type annotations, for Python users and configurations.

@dataclass(frozen=True)
class Link:
    latency: NonNegative
    bandwidth: Positive

    def __post_init__(self) -> None:
        check_bounds(self)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
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
        whole: Whether the numbers are whole.
    """

    rule: str
    legal: str
    least: float
    below: float | None = None
    above: bool = False
    whole: bool = False

    def hold(self, value: Any) -> bool:
        """Whether a value is a number inside the interval."""
        if not is_number(value) or (self.whole and not isinstance(value, int)):
            return False
        if self.below is not None and not value < self.below:
            return False
        return bool(value > self.least if self.above else value >= self.least)


NonNegative = Annotated[float, Bounds("a finite number, at least 0", "1.0e-6", 0.0)]
Positive = Annotated[float, Bounds("a finite number above 0", "1.0", 0.0, above=True)]
Count = Annotated[int, Bounds("a whole number, at least 1", "1", 1, whole=True)]
UnitInterval = Annotated[float, Bounds("at least 0 and below 1", "0.5", 0.0, below=1.0)]


def check_bounds(owner: object) -> None:
    """Raises InvalidRequest for the first attribute of a dataclass outside the bounds of its annotation.

    With `Count | None` the value may also be None."""
    kind: Any = type(owner)
    for name, bounds, optional in _bounded(kind):
        value = getattr(owner, name)
        if not bounds.hold(value) and not (optional and value is None):
            raise InvalidRequest(name, value, bounds.rule, f"{name}={bounds.legal}")


@cache
def _bounded(owner: Any) -> Sequence[tuple[str, Bounds, bool]]:
    """Name and bounds of each bounded attribute, and whether it may be None."""
    hints = get_type_hints(owner, include_extras=True)
    return [
        (name, each, NoneType in get_args(hint))
        for name, hint in hints.items()
        for part in (hint, *get_args(hint))  # the parts of a union
        for each in get_args(part)[1:]
        if isinstance(each, Bounds)
    ]
