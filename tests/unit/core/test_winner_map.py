"""Maps of winners: the best of each cell, ties, systems without a value, and records."""

from __future__ import annotations

import json
import math
import random

import pytest

from suite.core.errors import InvalidRequest
from suite.core.record import Outcome, Record, Source
from suite.core.winner_map import Winner, WinnerMap, is_map, read_map
from tests.support.refusals import refused

NAN = math.nan
MAP = WinnerMap(
    "a title",
    "makespan",
    ["4", "8"],
    ["2"],
    {"a": [1.0, NAN], "b": [1.0 + 1e-12, NAN], "c": [1.25, NAN]},
    {"a": [8.0, 1.0], "b": [4.0, 1.0]},
)


def test_equal_values_are_ordered_by_the_tie_break() -> None:
    assert MAP.winner(0, 0) == Winner(("b", "a"), 1.0, "c", pytest.approx(0.25))
    assert MAP.winner(0, 1) is None
    assert MAP.wins() == {"b": 1}


def test_a_single_system_has_no_margin() -> None:
    winner = WinnerMap("t", "q", ["1"], ["1"], {"a": [2.0], "b": [NAN]}).winner(0, 0)
    assert winner is not None
    assert (winner.names, winner.second, math.isnan(winner.margin)) == (("a",), "", True)


def test_winners_equal_a_search_over_all_systems() -> None:
    rng = random.Random(3)
    names, rows, columns = "abcde", 4, 3
    values = {name: [rng.choice([1.0, 1.5, 2.0, NAN]) for _ in range(rows * columns)] for name in names}
    ties = {name: [rng.random() for _ in range(rows * columns)] for name in names}
    found = WinnerMap("t", "q", list("xyz"), list("1234"), values, ties)
    for row in range(rows):
        for column in range(columns):
            at = row * columns + column
            ranking = sorted((values[n][at], ties[n][at], n) for n in names if math.isfinite(values[n][at]))
            winner = found.winner(row, column)
            assert winner is not None
            assert list(winner.names) == [name for value, _, name in ranking if value == ranking[0][0]]
            rest = [(value, name) for value, _, name in ranking if value > ranking[0][0]]
            assert winner.second == (rest[0][1] if rest else "")
    assert sum(found.wins().values()) == rows * columns


def test_a_record_keeps_a_map() -> None:
    record = Record("k", "e", "s", "l", Outcome.OK, Source.SIMULATED, panels=[MAP.to_record()])
    row = json.loads(record.to_json())["panels"][0]
    assert is_map(row)
    assert read_map(row).winner(0, 0) == MAP.winner(0, 0)


@pytest.mark.parametrize(
    ("change", "key", "rule"),
    [
        ({"values": {"a": [1.0]}}, "panel.a", "a value for each of 2 cells"),
        ({"tie_breaks": {" ": [1.0, 2.0]}}, "panel. ", "a name"),
        ({"x": []}, "panel.x", "at least one point"),
        ({"title": ""}, "panel.title", "text that is not empty"),
        ({"kind": "other"}, "panel.kind", "map"),
    ],
)
def test_a_malformed_map_is_refused(change: dict[str, object], key: str, rule: str) -> None:
    with refused(InvalidRequest, key, rule=rule):
        read_map({**MAP.to_record(), **change})
