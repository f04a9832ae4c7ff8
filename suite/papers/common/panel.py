"""Panels of reproduced figures: printed points next to ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.core.claim import Claim

NONE = float("nan")  # missing point; the papers print few numbers of a curve


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: several curves over the same points.

    Attributes:
        title: Begins with the published figure or table, as in "Figure 8 of SAMO: ...".
        unit: Unit of the values.
        x: Names of the points.
        ours: Our values by system.
        paper: Printed values by system, nan for a point without one.
        null: Values of the null model by system, nan for a point without one.
        calibrated: Points to which a constant was fitted, as (system, index).
        axis: Label of the x axis.
        quantity: Label of the y axis.
        scale: "log" or "log-log" as in the paper's figure; empty for automatic scaling.
        evidence: Evidence of our values, "simulated" or "derived".
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


# panel function of a figure: takes the lab and the claims by id
Panels = Callable[[Any, Mapping[str, Claim]], Sequence[Panel]]


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
