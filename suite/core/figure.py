"""Panel of a published figure in a record: the paper's values and ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from suite.core.errors import InvalidRequest
from suite.core.plain_data import read_dataclass


def check_panel(title: str, axes: Mapping[str, Sequence[str]], curves: Iterable[Mapping[str, Sequence[float]]]) -> None:
    """Raises InvalidRequest unless a panel has a title, names of points on each axis, and a value for each point."""
    names = {"title": [title], **axes}
    if empty := next((name for name, texts in names.items() if not texts or not all(texts)), None):
        raise InvalidRequest(f"panel.{empty}", names[empty], rule="at least one text, and none that is empty")
    points = math.prod(map(len, axes.values()))
    for system, values in (each for curve in curves for each in curve.items()):
        if not system.strip() or len(values) != points:
            rule = f"a name, and a value for each of {points} points"
            raise InvalidRequest(f"panel.{system}", f"{len(values)} values", rule=rule)


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """Curves over the same points, by system; nan where there is no value.

    Attributes:
        title: Title of the panel, without the name of its figure.
        unit: Unit of the values.
        x: Names of the points.
        ours: Our values by system.
        paper: Values that the paper prints.
        null: Values of the null model.
        calibrated: Points that a constant was fitted to, as (system, index).
        axis: Quantity on the x axis.
        quantity: Quantity on the y axis.
        scale: "log" or "log-log" where the paper's figure has that scale; empty for a scale that suits the values.
        evidence: How our values came about, such as "simulated" or "derived"; empty for the source of the record.
        figure: Published figure or table that the panel belongs to, such as "Figure 8"; empty for none.
        publication: Name of its paper, such as "SAMO".
        caption: Caption, for a panel that belongs to no paper; empty for a caption that compares with the paper.
    """

    title: str
    unit: str
    x: Sequence[str]
    ours: Mapping[str, Sequence[float]] = field(default_factory=dict)
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)
    null: Mapping[str, Sequence[float]] = field(default_factory=dict)
    calibrated: Sequence[tuple[str, int]] = ()
    axis: str = ""
    quantity: str = field(default="", kw_only=True)
    scale: str = field(default="", kw_only=True)
    evidence: str = field(default="", kw_only=True)
    figure: str = field(default="", kw_only=True)
    publication: str = field(default="", kw_only=True)
    caption: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_panel(self.title, {"x": self.x}, (self.ours, self.paper, self.null))
        if bool(self.figure) != bool(self.publication):
            raise InvalidRequest("panel.publication", self.publication, rule="both figure and publication, or neither")

    def to_record(self) -> dict[str, Any]:
        """The panel as plain data; empty optional parts are left out."""
        return {name: value for name, value in asdict(self).items() if value or name == "unit"}


def read_figure_panel(row: Any) -> FigurePanel:
    """An entry of a record's `panels`. Raises InvalidRequest for a malformed one."""
    return read_dataclass(FigurePanel, row, "panel")
