"""Maps of winners on the page: words for every winner, limits, remarks on malformed maps, and no markup."""

from __future__ import annotations

import math
from typing import Any

from suite.config.panels import WinnerMap
from suite.core.record import Record, Source
from suite.report.page import page
from suite.report.panels import figure_panels, winner_maps
from tests.support.pages import site
from tests.support.report_records import in_store, make, texts

NAN = math.nan
MAP = WinnerMap(
    title="Equal times, no cap",
    quantity="makespan over the ideal",
    x=["4", "8"],
    y=["2", "16"],
    values={"ZBV": [1.5, 1.25, NAN, 1.0], "1F1B": [1.75, 1.25, NAN, 1.5], "GPipe": [1.75, 1.5, NAN, NAN]},
    tie_breaks={"ZBV": [8.0] * 4, "1F1B": [4.0] * 4, "GPipe": [9.0] * 4},
    axis="microbatches",
    y_axis="ranks",
    tie_break="activations held",
    group="Equal times",
    case="no cap",
    evidence="simulated",
)


def of(*maps: dict[str, Any]) -> Record:
    return make("schedules", panels=list(maps), metrics={}, source=Source.SIMULATED)


def rendered(record: Record) -> str:
    return site(page.render(in_store(record)))


def test_each_cell_names_winner_margin_and_second() -> None:
    [drawn] = winner_maps.draw(in_store(of(MAP.to_record())).entries, {"ZBV": 0, "1F1B": 1})
    cells = [[(c.winner, c.value, c.equal, c.second) for c in row] for _, row in drawn.rows]
    assert cells == [
        [("ZBV", "1.500", "", "16.7 % before 1F1B"), ("1F1B", "1.250", "= ZBV", "20.0 % before GPipe")],
        [("none", "", "", ""), ("ZBV", "1.000", "", "50.0 % before 1F1B")],
    ]
    assert drawn.wins == "ZBV: 2; 1F1B: 1"
    marks = {(c.mark, c.colour) for _, row in drawn.rows for c in row}
    assert len({mark for mark, _ in marks}) == len({colour for _, colour in marks}) == 3


def test_a_map_is_a_table_with_a_heading_for_each_card() -> None:
    text = rendered(of(MAP.to_record()))
    assert '<table class="map" aria-label="Equal times, no cap">' in text
    assert text.count('data-column="8 microbatches"') == 2
    assert '<th scope="row">16<span class="unit"> ranks</span></th>' in text
    assert "1.500, 16.7 % before 1F1B" in text
    assert "activations held" in text


def test_the_summary_counts_points_by_setting_and_limit() -> None:
    other = {**MAP.to_record(), "case": "at most p", "values": {"ZBV": [1.0, NAN, NAN, NAN]}}
    table = winner_maps.summary(in_store(of(MAP.to_record(), other)).entries)
    assert texts(table) == [["Equal times", "ZBV: 2; 1F1B: 1", "ZBV: 1"]]
    assert list(table.frame) == ["setting", "no cap", "at most p"]
    assert winner_maps.summary([]) is None


def test_many_winners_are_counted_together() -> None:
    winners = "aaabbbcccdde"
    values = {name: [0.0 if winner == name else 1.0 for winner in winners] for name in "abcde"}
    wide = WinnerMap(title="t", x=[str(at) for at in range(len(winners))], y=["1"], values=values)
    [row] = [winner_maps._wins(each) for each in winner_maps.read(of(wide.to_record()))]
    assert row == "a: 3; b: 3; c: 3; 2 others: 3"


def test_a_malformed_map_becomes_a_remark() -> None:
    record = of({**MAP.to_record(), "values": {"ZBV": [1.0]}}, MAP.to_record())
    [fault] = winner_maps.faults(record)
    assert fault.startswith("map 1 is not shown: ")
    assert figure_panels.faults(record) == []
    text = rendered(record)
    assert ("map 1 is not shown" in text, text.count('<table class="map"')) == (True, 1)


def test_a_large_record_is_cut_with_a_remark() -> None:
    many = of(*[MAP.to_record()] * (winner_maps.MOST_MAPS + 2))
    assert len(winner_maps.read(many)) == winner_maps.MOST_MAPS
    assert winner_maps.faults(many) == ["2 more maps of winners are in the record"]
    points = [str(at) for at in range(1, 40)]
    wide = WinnerMap(title="t", x=points, y=["1"], values={"a": [1.0] * len(points)})
    text = rendered(of(wide.to_record()))
    assert text.count("data-column=") == winner_maps.MOST_POINTS
