"""Panels of a record: curves of a published figure next to ours, and maps of winners.

Executors and the figures of papers make them, records hold them as plain data, and the report reads them with
`FigurePanel.read` and `WinnerMap.read`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from suite.config.base import Settings, rule_error
from suite.config.experiment import Label, Words
from suite.config.refusals import validated
from suite.core.values import is_number

MAP = "map"
EQUAL = 1e-9  # relative difference below which two values are equal: sums in another order


def _finite(value: Any) -> Any:
    """A value of a curve: null, which JSON has in place of nan, and numbers beyond a float are nan."""
    return math.nan if value is None or (type(value) in (int, float) and not is_number(value)) else value


Value = Annotated[float, Field(allow_inf_nan=True), BeforeValidator(_finite)]
Curves = Mapping[Label, Sequence[Value]]
Points = Annotated[Sequence[Label], Field(min_length=1)]


class RecordPanel(Settings):
    """Curves over points, by system; nan where there is no value.

    Attributes:
        title: Title of the panel, without the name of its figure.
        x: Names of the points.
        axis: Quantity on the x axis.
        quantity: Quantity of the values.
        evidence: How our values came about, such as "simulated" or "derived"; empty for the source of the record.
    """

    title: Label
    x: Points
    axis: Words = ""
    quantity: Words = ""
    evidence: Words = ""

    @classmethod
    def read(cls, row: Any) -> Self:
        """An entry of a record's `panels`. Raises InvalidRequest for a malformed one."""
        return validated(cls, row, "panel")

    def to_record(self) -> dict[str, Any]:
        """The panel as plain data; empty optional parts are left out."""
        return {name: value for name, value in self.model_dump().items() if value or name == "unit"}

    def _check_points(self, curves: Iterable[Mapping[str, Sequence[float] | Sequence[str]]], points: int) -> None:
        if any(len(values) != points for each in curves for values in each.values()):
            raise rule_error(f"a value for each of {points} points in every curve")


class FigurePanel(RecordPanel):
    """A panel of a published figure: the paper's values and ours.

    Attributes:
        unit: Unit of the values.
        ours: Our values by system.
        paper: Values that the paper prints, for points without a claim.
        printed: Claim that prints each point, by system; empty for none. 'ID low', 'ID high': an end of a range.
        null: Values of the null model.
        calibrated: Points that a constant was fitted to, as (system, index).
        scale: "log" or "log-log" where the paper's figure has that scale; empty for a scale that suits the values.
        figure: Published figure or table that the panel belongs to, such as "Figure 8"; empty for none.
        publication: Name of its paper, such as "SAMO".
        caption: Caption, for a panel that belongs to no paper; empty for a caption that compares with the paper.
    """

    unit: Words
    ours: Curves = Field(default_factory=dict)
    paper: Curves = Field(default_factory=dict)
    printed: Mapping[Label, Sequence[Words]] = Field(default_factory=dict)
    null: Curves = Field(default_factory=dict)
    calibrated: Sequence[Annotated[tuple[Words, int], Field(strict=False)]] = ()
    scale: Words = ""
    figure: Words = ""
    publication: Words = ""
    caption: Words = ""

    @model_validator(mode="after")
    def _parts_fit(self) -> FigurePanel:
        self._check_points((self.ours, self.paper, self.null, self.printed), len(self.x))
        if bool(self.figure) != bool(self.publication):
            raise rule_error("both figure and publication, or neither")
        return self


class Winner(NamedTuple):
    """Best system of one cell.

    Attributes:
        names: Systems with the smallest value, the one with the smallest tie break first.
        value: Their value.
        second: The next best system; empty if there is none.
        margin: Value of the next best system over that of the winner, minus 1; nan if there is none.
    """

    names: tuple[str, ...]
    value: float
    second: str
    margin: float


class WinnerMap(RecordPanel):
    """Values of several systems over a grid of rows and columns. The smallest value of a cell wins.

    Sequences of values run row by row, with nan where a system has no value.

    Attributes:
        y: Names of the rows; `x` has those of the columns.
        values: Values by system.
        tie_breaks: Values that decide between equal ones, by system; the smallest wins.
        y_axis: Quantity of the rows.
        tie_break: Quantity of `tie_breaks`.
        group: Setting that several maps share.
        case: Setting in which the maps of a group differ.
        kind: Always "map", which distinguishes it from other panels of a record.
    """

    y: Points
    values: Curves = Field(default_factory=dict)
    tie_breaks: Curves = Field(default_factory=dict)
    y_axis: Words = ""
    tie_break: Words = ""
    group: Words = ""
    case: Words = ""
    kind: Literal["map"] = "map"

    @model_validator(mode="after")
    def _parts_fit(self) -> WinnerMap:
        self._check_points((self.values, self.tie_breaks), len(self.x) * len(self.y))
        return self

    def winner(self, row: int, column: int) -> Winner | None:
        """Winner of a cell; None if no system has a value."""
        index = row * len(self.x) + column
        finite = {name: each[index] for name, each in self.values.items() if math.isfinite(each[index])}
        if not finite:
            return None
        best = min(finite.values())
        first = [name for name, value in finite.items() if value - best <= EQUAL * abs(best)]
        first.sort(key=lambda name: self._tie_break(name, index))
        others = {name: value for name, value in finite.items() if name not in first}
        second = min(others, key=lambda name: (others[name], self._tie_break(name, index)), default="")
        margin = others[second] / best - 1 if second and best else math.nan
        return Winner(tuple(first), best, second, margin)

    def wins(self) -> dict[str, int]:
        """Cells that each system wins, the most first. The tie break decides between equal values."""
        counts: dict[str, int] = {}
        for row in range(len(self.y)):
            for column in range(len(self.x)):
                if winner := self.winner(row, column):
                    counts[winner.names[0]] = counts.get(winner.names[0], 0) + 1
        return dict(sorted(counts.items(), key=lambda pair: -pair[1]))

    def _tie_break(self, name: str, index: int) -> float:
        values = self.tie_breaks.get(name)
        return values[index] if values and math.isfinite(values[index]) else math.inf


def is_map(row: Any) -> bool:
    """Whether an entry of a record's `panels` is a map."""
    return isinstance(row, Mapping) and row.get("kind") == MAP
