"""Decides what a simulated figure is: answers to claims, and panels that put the paper's points beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.analytic.question import Answers
from suite.core.claim import Claim
from suite.core.errors import UnknownName

NONE = float("nan")  # a point that has no value: the paper prints few


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: curves over the same points.

    x: the points' names; ours: by system, the values; paper, null: the same of the paper's printed values and of the
    null model, nan where there is none; calibrated: points that a constant was fitted to, as (system, index); axis:
    what the points count
    """

    title: str
    unit: str
    x: Sequence[str]
    ours: Mapping[str, Sequence[float]]
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)
    null: Mapping[str, Sequence[float]] = field(default_factory=dict)
    calibrated: Sequence[tuple[str, int]] = ()
    axis: str = ""


@dataclass(frozen=True)
class Figure:
    """A published figure or table. answers: to its claims, asked with a Lab; panels: made from a Lab and the claims."""

    name: str
    paper: str
    where: str
    answers: Answers
    panels: Callable[[Any, Mapping[str, Claim]], Sequence[Panel]]


FIGURES: dict[str, Figure] = {}


def figure(name: str, where: str, panels: Callable[[Any, Mapping[str, Claim]], Sequence[Panel]]) -> Answers:
    """Enters a figure; its answers are entered with what is returned."""
    answers = Answers()
    FIGURES[name] = Figure(name, name.partition("_")[0], where, answers, panels)
    return answers


def find(name: str) -> Figure:
    if name not in FIGURES:
        raise UnknownName("simulated figure", name, FIGURES)
    return FIGURES[name]


def number(claims: Mapping[str, Claim], name: str) -> float:
    """The number that claim `name` publishes; nan where it publishes none."""
    value = claims[name].value if name in claims else NONE
    return value if isinstance(value, float) else NONE
