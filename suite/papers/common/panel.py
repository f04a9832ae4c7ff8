"""Printed values for the panels of reproduced figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from suite.core.claim import Claim
from suite.core.figure import FigurePanel

NONE = float("nan")  # missing point; the papers print few numbers of a curve


# panel function of a figure: takes the lab and the claims by id
Panels = Callable[[Any, Mapping[str, Claim]], Sequence[FigurePanel]]


def published_number(claims: Mapping[str, Claim], name: str) -> float:
    """Published number of claim `name`; nan if it publishes no number, and in blind mode."""
    value = claims[name].value if name in claims else NONE
    return value if isinstance(value, float) else NONE


def published_range(claims: Mapping[str, Claim], name: str) -> tuple[float, float]:
    """Both ends of the published range of claim `name`; nan if it publishes no range."""
    value = claims[name].value if name in claims else NONE
    return value if isinstance(value, tuple) else (NONE, NONE)


def published_bound(claims: Mapping[str, Claim], name: str) -> float:
    """Published number of claim `name`, or the finite end of its open range; nan if it publishes neither."""
    low, high = published_range(claims, name)
    return next((value for value in (published_number(claims, name), low, high) if math.isfinite(value)), NONE)
