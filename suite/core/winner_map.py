"""Map of winners in a record: which system is best at each pair of two quantities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from suite.core.errors import InvalidRequest
from suite.core.figure import check_panel
from suite.core.plain_data import read_dataclass

MAP = "map"
EQUAL = 1e-9  # relative difference below which two values are equal: sums in another order


@dataclass(frozen=True, slots=True)
class Winner:
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


@dataclass(frozen=True, slots=True)
class WinnerMap:
    """Values of several systems over a grid of rows and columns. The smallest value of a cell wins.

    Sequences of values run row by row, with nan where a system has no value.

    Attributes:
        title: Title of the map.
        quantity: Quantity that is compared.
        x, y: Names of columns and rows.
        values: Values by system.
        tie_breaks: Values that decide between equal ones, by system; the smallest wins.
        axis, y_axis: Quantities of columns and rows.
        tie_break: Quantity of `tie_breaks`.
        group: Setting that several maps share.
        case: Setting in which the maps of a group differ.
        evidence: How the values came about; empty for the source of the record.
        kind: Always "map", which distinguishes it from other panels of a record.
    """

    title: str
    quantity: str
    x: Sequence[str]
    y: Sequence[str]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tie_breaks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    axis: str = ""
    y_axis: str = ""
    tie_break: str = ""
    group: str = ""
    case: str = ""
    evidence: str = ""
    kind: str = MAP

    def __post_init__(self) -> None:
        if self.kind != MAP:
            raise InvalidRequest("panel.kind", self.kind, rule=MAP, legal=MAP)
        check_panel(self.title, {"x": self.x, "y": self.y}, (self.values, self.tie_breaks))

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

    def to_record(self) -> dict[str, Any]:
        """The map as plain data; empty optional parts are left out."""
        return {name: value for name, value in asdict(self).items() if value}


def is_map(row: Any) -> bool:
    """Whether an entry of a record's `panels` is a map."""
    return isinstance(row, Mapping) and row.get("kind") == MAP


def read_map(row: Any) -> WinnerMap:
    """An entry of a record's `panels`. Raises InvalidRequest for a malformed one."""
    return read_dataclass(WinnerMap, row, "panel")
