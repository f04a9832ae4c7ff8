"""Bounds of annotated numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from suite.core.bounds import NonNegative, Positive, UnitInterval, check_bounds
from suite.core.errors import InvalidRequest


@dataclass
class Numbers:
    share: UnitInterval = 0.5
    size: Positive = 1.0
    time: NonNegative = 0.0
    free: float = -1.0

    def __post_init__(self) -> None:
        check_bounds(self, "numbers")


def test_values_within_bounds_are_accepted() -> None:
    Numbers(share=0, size=1e-300, time=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", 1.0),
        ("share", -0.1),
        ("share", math.nan),
        ("size", 0.0),
        ("size", math.inf),
        ("time", -1),
        ("time", True),
    ],
)
def test_a_value_outside_its_bounds_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Numbers(**{name: value})
    assert caught.value.key == f"numbers.{name}"
    assert caught.value.value is value
    legal = caught.value.legal.partition("=")[2]
    Numbers(**{name: float(legal)})
