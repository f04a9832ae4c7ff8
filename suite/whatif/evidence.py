"""Published claims and runs near a point of the page.

`evidence.json` next to the page holds claims and runs with their features (suite.whatif.export_evidence). A feature is
a name (schedule, model, machine) or a positive number (ranks, devices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, log
from typing import Any

from suite.core.values import Json
from suite.whatif.answer import AnswerPart, AnswerTable, CellLink

Point = Mapping[str, str | float | None]  # features by name
UNSTATED = 0.75  # distance of a feature that only one side states
STRONGEST_FIRST = ("measured", "emulated", "simulated", "derived", "printed", "")
ORDER = (
    "Nearest first: a name that differs adds 1 to the distance, a number the absolute natural logarithm of the ratio,"
    f" and a feature of the point that only one side states {UNSTATED:g}; at equal distance, measured comes before"
    " emulated, simulated, derived and printed, and a row that is farther than one without features is left out."
)
TABLES = {  # title and columns by the key of evidence.json
    "claims": ("Published claims near this point", ("claim", "printed", "ours", "unit", "evidence", "verdict")),
    "runs": ("Runs near this point", ("run", "batch time", "unit", "evidence")),
}


def near(point: Point, evidence: Mapping[str, Sequence[Mapping[str, Json]]], count: int = 6) -> AnswerPart:
    """The `count` published claims and the `count` runs that are nearest to a point."""
    tables: list[AnswerTable] = []
    for kind, (title, columns) in TABLES.items():
        rated = [(distance(point, row["at"]), row) for row in evidence.get(kind, ())]
        found = [pair for pair in rated if pair[0] < distance(point, {})]
        found.sort(key=lambda pair: (pair[0], STRONGEST_FIRST.index(str(pair[1].get("evidence", "")))))
        rows: list[list[Any]] = [
            [CellLink(str(row[columns[0]]), f"../{row['href']}"), *map(row.get, columns[1:]), far]
            for far, row in found[:count]
        ]
        tables += [AnswerTable(title, [*columns, "distance"], rows, "" if tables else ORDER)] if rows else []
    return AnswerPart("evidence", tables=tables)


def distance(point: Point, at: Any) -> float:
    """Distance of two points over the features of the first, to six decimals so that equal ones tie on any machine."""
    return round(fsum(_apart(value or None, at.get(name) or None) for name, value in point.items()), 6)


def _apart(one: Any, other: Any) -> float:
    if one is None or other is None:
        return UNSTATED * (one is not other)
    if isinstance(one, str) or isinstance(other, str):
        return float(one != other)
    return abs(log(one / other))
