"""Maps of winners from records: the best system at each pair of two quantities, as tables.

Each cell names its winner in words, with the colour and the shape that the winner has in the pictures of the section.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from suite.config.panels import WinnerMap, is_map
from suite.core.errors import InvalidRequest
from suite.core.record import Record
from suite.report.load import StoredRecord
from suite.report.names import NONE
from suite.report.plots.figure import PALETTE, shape
from suite.report.tables.record_tables import Table

MOST_MAPS, MOST_POINTS, MOST_NAMED = 120, 24, 3


@dataclass(frozen=True, slots=True)
class MapCell:
    """One cell: the winner with its colour and shape, equal systems, and the next best one."""

    column: str
    winner: str
    colour: str
    mark: str
    value: str = ""
    equal: str = ""
    second: str = ""


@dataclass(frozen=True, slots=True)
class DrawnMap:
    """A map as a table with a row for each value of `y_axis`.

    Attributes:
        panel: The map of the record.
        source: Source of its values.
        rows: Name and cells of each row.
        wins: Points that each system wins, in words.
        cut: Whether the record holds more rows or columns.
    """

    panel: WinnerMap
    source: str
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]
    wins: str
    cut: bool


def read(record: Record) -> list[WinnerMap]:
    """The well-formed maps of a record, at most MOST_MAPS."""
    return [each for each in _read(record) if isinstance(each, WinnerMap)][:MOST_MAPS]


def faults(record: Record) -> list[str]:
    """A sentence for each malformed map of a record, and one for maps that are not shown."""
    read_maps = _read(record)
    said = [each for each in read_maps if isinstance(each, str)]
    omitted = len(read_maps) - len(said) - MOST_MAPS
    return [*said, *([f"{omitted} more maps of winners are in the record"] if omitted > 0 else [])]


def _read(record: Record) -> list[WinnerMap | str]:
    maps: list[WinnerMap | str] = []
    for place, row in enumerate(record.panels, 1):
        if is_map(row):
            try:
                maps.append(WinnerMap.read(row))
            except InvalidRequest as error:
                maps.append(f"map {place} is not shown: {error}")
    return maps


def draw(entries: Sequence[StoredRecord], looks: Mapping[str, int]) -> list[DrawnMap]:
    """The maps of several records. looks: number of each system's colour and shape"""
    drawn = []
    for entry in entries:
        for each in read(entry.record):
            known = {**looks}
            for name in each.values:
                known.setdefault(name, len(known))
            drawn.append(_drawn(each, known, each.evidence or entry.record.source.value))
    return drawn


def answer(entries: Sequence[StoredRecord]) -> str:
    """'Points won: ZBV 21, AxoNN 4.' over all maps; empty without maps."""
    wins = Counter[str]()
    for entry in entries:
        for each in read(entry.record):
            wins.update(each.wins())
    text = ", ".join(f"{name} {count}" for name, count in wins.most_common(MOST_NAMED))
    return f"Points won in the maps: {text}." if text else ""


def summary(entries: Sequence[StoredRecord]) -> Table | None:
    """Table of the points that systems win, by the group and the case of the maps; None without maps."""
    maps = [each for entry in entries for each in read(entry.record) if each.group]
    if not maps:
        return None
    wins = pd.DataFrame(
        [(each.group, each.case or "all", _wins(each)) for each in maps], columns=["setting", "case", "wins"]
    )
    frame = wins.drop_duplicates(["setting", "case"], keep="last").pivot(index="setting", columns="case", values="wins")
    frame = frame.loc[wins["setting"].unique(), wins["case"].unique()].fillna(NONE)
    return Table("Points won, by setting and limit", frame.reset_index())


def _drawn(found: WinnerMap, looks: Mapping[str, int], source: str) -> DrawnMap:
    rows = tuple(
        (name, tuple(_cell(found, row, column, looks) for column in range(len(found.x[:MOST_POINTS]))))
        for row, name in enumerate(found.y[:MOST_POINTS])
    )
    return DrawnMap(found, source, rows, _wins(found), max(len(found.x), len(found.y)) > MOST_POINTS)


def _cell(found: WinnerMap, row: int, column: int, looks: Mapping[str, int]) -> MapCell:
    winner = found.winner(row, column)
    if winner is None:
        return MapCell(found.x[column], "none", "transparent", NONE)
    look = looks[winner.names[0]]
    equal = winner.names[1:]
    more = f" and {len(equal) - MOST_NAMED} more" if len(equal) > MOST_NAMED else ""
    return MapCell(
        found.x[column],
        winner.names[0],
        str(PALETTE[look % len(PALETTE)]),
        shape(look)[1],
        f"{winner.value:.3f}",
        f"= {', '.join(equal[:MOST_NAMED])}{more}" if equal else "",
        f"{100 * winner.margin:.1f} % before {winner.second}" if math.isfinite(winner.margin) else "",
    )


def _wins(found: WinnerMap) -> str:
    """'ZBV: 21; AxoNN: 4; 2 others: 5': points by winner."""
    wins = list(found.wins().items())
    shown = [f"{name}: {count}" for name, count in wins[:MOST_NAMED]]
    if more := wins[MOST_NAMED:]:
        shown.append(f"{len(more)} other{'s' if len(more) > 1 else ''}: {sum(count for _, count in more)}")
    return "; ".join(shown) or "no system fits"
