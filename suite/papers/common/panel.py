"""Panels of simulated and counted figures: the paper's points next to ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.core.claim import Claim

NONE = float("nan")  # a point that has no value: the paper prints few


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: curves over the same points.

    Attributes:
        x: The points' names.
        ours: By system, the values.
        paper, null: The same of the paper's printed values and of the null model, nan where there is none.
        calibrated: Points that a constant was fitted to, as (system, index); axis: what the points count.
        quantity: Quantity of the values, as the y axis names it.
        title: Of a panel of a published figure or table it begins with its name, "Figure 8 of SAMO: ...".
        scale: "log" or "log-log" where the paper's figure has that scale; empty: as the values ask for.
        evidence: How our values came about, "simulated" or "derived".
    """

    title: str
    unit: str
    x: Sequence[str]
    ours: Mapping[str, Sequence[float]]
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)
    null: Mapping[str, Sequence[float]] = field(default_factory=dict)
    calibrated: Sequence[tuple[str, int]] = ()
    axis: str = ""
    quantity: str = field(kw_only=True)
    scale: str = field(default="", kw_only=True)
    evidence: str = field(default="simulated", kw_only=True)


# draws a figure: its panels, from the simulated or counted runs and the claims by id
Panels = Callable[[Any, Mapping[str, Claim]], Sequence[Panel]]


def published_number(claims: Mapping[str, Claim], name: str) -> float:
    """The number that claim `name` publishes; nan where it publishes none, and in blind mode."""
    value = claims[name].value if name in claims else NONE
    return value if isinstance(value, float) else NONE


def published_range(claims: Mapping[str, Claim], name: str) -> tuple[float, float]:
    """The two ends of the range that claim `name` publishes; nan where it publishes none."""
    value = claims[name].value if name in claims else NONE
    return value if isinstance(value, tuple) else (NONE, NONE)


def published_bound(claims: Mapping[str, Claim], name: str) -> float:
    """The number that claim `name` publishes, or the finite end of its open range; nan where it publishes neither."""
    low, high = published_range(claims, name)
    return next((value for value in (published_number(claims, name), low, high) if math.isfinite(value)), NONE)
