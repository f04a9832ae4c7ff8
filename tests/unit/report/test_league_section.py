"""Section of the page on the simulator's errors against public measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from suite.claims import load
from suite.papers.public.league_file import ANSWERS, LEAGUE, LeagueGroup, published_errors
from suite.report import write_report
from suite.report.page import page_budget
from suite.report.panels.league_section import LeagueSection, league_section
from suite.report.plots import error_bars
from tests.support.league import GROUPS, league_file
from tests.support.pages import Page

TITLE = "Simulator against public measurements"
RANGES = "Ranges over plausible values of unknown settings"
MEMORY = "Memory of the fullest device"


def built(folder: Path) -> Page:
    return Page(write_report(folder).read_text(encoding="utf-8"))


def section_of(*groups: LeagueGroup) -> LeagueSection:
    return league_section(league_file(groups or GROUPS), published_errors(), has_answers=False)


def rows_of(section: LeagueSection) -> list[ElementTree.Element]:
    """The rows of the picture, one per group."""
    return [each for each in ElementTree.fromstring(section.picture.svg).iter("g") if each.get("class") == "row"]


def texts_of(row: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in row.iter("text")]


def cells_of(section: LeagueSection, title: str) -> list[list[str]]:
    """Texts of a table of the section, row by row."""
    [table] = [table for table in section.tables if table.title == title]
    return [[cell.text for cell in row] for row in table.rows]


def test_section_appears_with_a_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "claims", tuple)  # no claims
    page = built(tmp_path)
    assert TITLE not in page.words()
    assert not page.all("svg")
    league_file().write(tmp_path)
    page = built(tmp_path)
    assert page.words().count(TITLE) == 1
    [label] = page.values("svg", "aria-label")
    assert "far: 3 cells, mean error 123.4 %, median +110.0 %, null model 30.0 %" in label
    assert f"./{ANSWERS}" not in page.values("a", "href")
    (tmp_path / ANSWERS).touch()
    assert f"./{ANSWERS}" in built(tmp_path).values("a", "href")
    (tmp_path / LEAGUE).write_text('{"score": ')  # a damaged file costs its section only
    page = built(tmp_path)
    assert TITLE not in page.words()
    assert "league.json" in page.words()


def test_picture_has_a_row_for_each_group_the_worst_first() -> None:
    section = section_of()
    rows = rows_of(section)
    assert [texts_of(row)[0] for row in rows] == ["far", "megatron_a100_recompute", "near"]
    assert [row[0] for row in cells_of(section, "Groups, the largest error first")] == [
        texts_of(row)[0] for row in rows
    ]


def test_errors_beyond_the_axis_are_printed_next_to_an_arrow() -> None:
    far, *others = rows_of(section_of())
    assert texts_of(far)[1:] == ["mean 123 %, median +110 %"]
    assert len(far.findall("path")) == 1
    assert far.find("circle") is None, "the median is beyond the axis"
    assert far.find("line") is not None, "the null model is on the axis"
    for row in others:
        assert len(texts_of(row)) == 1
        assert row.find("path") is None
        assert row.find("circle") is not None


def test_bars_dots_and_ticks_stand_at_their_errors() -> None:
    root = ElementTree.fromstring(error_bars.error_bars([error_bars.ErrorRow("a", 1, 30.0, -15.0, 50.0)], "Errors."))
    place = {each.text: float(each.get("x", "")) for each in root.findall("text")}
    [row] = root.findall("g")
    [bar], [dot], [null] = (row.findall(tag) for tag in ("rect", "circle", "line"))
    x = float(bar.get("x", ""))
    ends = [x, x + float(bar.get("width", "")), float(dot.get("cx", "")), float(null.get("x1", ""))]
    middle = (place["-20 %"] + place["-10 %"]) / 2
    assert ends == pytest.approx([place["0 %"], place["30 %"], middle, place["50 %"]], abs=0.02)


def test_arrow_of_a_negative_error_points_left() -> None:
    rows = [error_bars.ErrorRow("a", 1, 75.0, -75.0, 5.0), error_bars.ErrorRow("b", 1, 50.0, -75.0, 5.0)]
    both, left = ElementTree.fromstring(error_bars.error_bars(rows, "Errors.")).findall("g")
    assert [texts_of(row)[1] for row in (both, left)] == ["mean 75 %, median -75 %", "median -75 %"]
    [right_arrow], [left_arrow] = both.findall("path"), left.findall("path")
    tips = [float(re.findall(r"[\d.]+", arrow.get("d", ""))[2]) for arrow in (right_arrow, left_arrow)]
    starts = [float(re.findall(r"[\d.]+", arrow.get("d", ""))[0]) for arrow in (right_arrow, left_arrow)]
    assert [tip > start for tip, start in zip(tips, starts, strict=True)] == [True, False]


def test_axis_ends_at_the_tick_below_the_least_median() -> None:
    for least, low in ((0.0, -10.0), (-10.0, -10.0), (-10.1, -20.0), (-75.0, -60.0)):
        assert error_bars.lowest([error_bars.ErrorRow("a", 1, 5.0, least, 5.0)]) == low


def test_tables_hold_the_values_of_the_file() -> None:
    rows = {row[0]: row[1:] for row in cells_of(section_of(), "Totals")}
    assert rows["fitted, without the cells of the fit"] == ["25.0 %", "50.0 %", "75.0 %", "3 of 4", "8 of 9", "1"]
    assert rows["blind, nothing fitted"][0] == "87.5 %"
    assert rows["fitted without the family of each group"][0] == "31.2 %"
    assert [rows[f"null model: {name}"][0] for name in ("one share", "bubble only")] == ["62.5 %", "37.5 %"]
    spread = ["60 to 80 %", "24.0 to 27.0 %", "3"]
    assert cells_of(section_of(), "Fitted constants")[0] == ["a100", "flash", "70.0 %", "near.1", *spread]
    section = section_of()
    for title, cells in {
        "Sweeps of layouts": [["near", "7", "2", "1.5 %", "near.1", "near.2"]],
        RANGES: [
            ["all groups", "8", "4 of 8", "–", "–", "25.2 %"],
            ["far", "3", "0 of 3", "+25.0 %", "+150.0 %", "50.0 %"],
            ["near", "5", "4 of 5", "-10.0 %", "+5.0 %", "0.4 %"],
        ],
        MEMORY: [
            ["these groups", "7", "25.0 %", "50.0 %", "–", "3 of 4", "10 of 11"],
            ["megatron_a100_recompute", "2", "37.5 %", "50.0 %", "+25.0 %", "–", "2 of 2"],
            ["near", "5", "12.5 %", "25.0 %", "-6.2 %", "–", "3 of 4"],
            ["far", "0", "–", "–", "–", "3 of 4", "5 of 5"],
        ],
        "Schedules with printed pass times": [["near", "zb_h1", "4", "6.2 %", "12.5 %", "-3.0 %", "25.0 %"]],
    }.items():
        assert cells_of(section, title) == cells


def test_file_without_the_newer_parts_has_fewer_tables() -> None:
    older = replace(league_file(), ranges=(), memory=(), schedules=())
    titles = {table.title for table in league_section(older, published_errors(), has_answers=False).tables}
    assert titles.isdisjoint({RANGES, MEMORY, "Schedules with printed pass times"})


def test_our_error_stands_next_to_one_on_the_same_cells() -> None:
    rows = cells_of(section_of(), "Published errors of other simulators")
    assert [row[2:6] for row in rows if row[0] == "Calculon"] == [["3.65 %", "8.87 %", "7.14 %", "11.09 %"]]
    assert [row[2:6] for row in rows if row[0] == "Primus projection"] == [["7.24 %", "9.20 %", "–", "–"]]
    [calculon, *_] = cells_of(section_of(GROUPS[0]), "Published errors of other simulators")
    assert calculon[4:6] == ["–", "–"], "no such group was scored"


def test_errors_no_better_than_the_null_model_are_marked() -> None:
    [table] = [table for table in section_of().tables if table.title.startswith("Groups")]
    details = {row[0].text: row[3].detail for row in table.rows}
    assert details == {"far": "no better than null", "megatron_a100_recompute": "no better than null", "near": ""}


def test_many_groups_are_cut_with_a_remark() -> None:
    """In the picture and in the tables, of which those of ranges and of memory have a row more for all groups."""
    count = page_budget.GROUPS + 5
    file = league_file()
    parts = {"groups": file.groups[0], "ranges": file.ranges[0], "memory": file.memory[1]}
    many = {part: tuple(replace(row, group=f"g{n}") for n in range(count)) for part, row in parts.items()}
    section = league_section(replace(file, **many), published_errors(), has_answers=False)
    cut = f"{page_budget.GROUPS} of {count}"
    assert (len(rows_of(section)), cut in section.picture.caption, section.groups) == (page_budget.GROUPS, True, count)
    rows = {table.title.partition(",")[0]: len(table.rows) for table in section.tables if cut in table.said}
    assert rows == {"Groups": page_budget.GROUPS, RANGES: page_budget.GROUPS + 1, MEMORY: page_budget.GROUPS + 1}
