"""Printed values for the panels of reproduced figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from suite.claims.claim import Claim
from suite.core.figure import FigurePanel

NONE = float("nan")  # missing point; the papers print few numbers of a curve


# panel function of a figure: takes the lab and the claims by id
Panels = Callable[[Any, Mapping[str, Claim]], Sequence[FigurePanel]]


class PublishedPoint(float):
    """Value of a claim at a point of a panel; nan where the claim prints no number, and in blind mode."""

    claim: str

    def __new__(cls, value: float, claim: str = "") -> Self:
        number = super().__new__(cls, value)
        number.claim = claim
        return number


def with_marks(panel: FigurePanel, calibrated_on: Collection[str]) -> FigurePanel:
    """Copy of a panel that marks the points whose claims a constant was fitted to or a plan was chosen by."""
    marks = [
        (curve, index)
        for curve, values in panel.paper.items()
        for index, value in enumerate(values)
        if isinstance(value, PublishedPoint) and value.claim in calibrated_on
    ]
    return replace(panel, calibrated=marks)


def published_number(claims: Mapping[str, Claim], name: str, scale: float = 1.0) -> float:
    """Published number of claim `name`, times `scale`; nan if it publishes no number, and in blind mode."""
    value = claims[name].value if name in claims else NONE
    return PublishedPoint(scale * value if isinstance(value, float) else NONE, name)


def published_range(claims: Mapping[str, Claim], name: str) -> tuple[float, float]:
    """Both ends of the published range of claim `name`; nan if it publishes no range."""
    value = claims[name].value if name in claims else NONE
    low, high = value if isinstance(value, tuple) else (NONE, NONE)
    return PublishedPoint(low, name), PublishedPoint(high, name)


def published_bound(claims: Mapping[str, Claim], name: str) -> float:
    """Published number of claim `name`, or the finite end of its open range; nan if it publishes neither."""
    low, high = published_range(claims, name)
    return next((value for value in (published_number(claims, name), low, high) if math.isfinite(value)), NONE)
