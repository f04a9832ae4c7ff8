"""Section of the page on the simulator's accuracy against public measurements."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from suite.claims import load
from suite.report import write_report
from suite.report.panels.accuracy_section import GROUPS, accuracy_section
from suite.simulate.validation.tables import ACCURACY
from tests.support.accuracy import CONSTANT, FAR, steps, write
from tests.support.pages import Page, site

TITLE = "Simulator against public measurements"


def test_section_appears_with_a_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "claims", tuple)  # no claims

    def built() -> Page:
        return Page(site(write_report(tmp_path)))

    page = built()
    assert TITLE not in page.words()
    assert not page.all("svg")
    write(tmp_path)
    page = built()
    assert page.words().count(TITLE) == 1
    assert len(page.all("svg")) == 1
    assert f"./{ACCURACY}" in page.values("a", "href")
    (tmp_path / ACCURACY).write_text("id\n1")  # a damaged file costs its section only
    page = built()
    assert TITLE not in page.words()
    assert ACCURACY in page.words()


def test_tables_show_percent_and_mark_errors_no_better_than_the_null_model() -> None:
    section = accuracy_section(steps({"error": -0.02}, FAR), pd.DataFrame([CONSTANT]))
    assert (section.cells, section.groups) == (2, 2)
    found = {table.title.partition(",")[0]: table for table in section.tables}
    far, near = found["Groups"].rows
    assert [cell.text for cell in near[2:6]] == ["1", "2.0 %", "2.0 %", "-2.0 %"]
    assert (far[3].text, far[3].detail, near[3].detail) == ("110.0 %", "no better than null", "")
    assert [cell.text for cell in found["Fitted constants"].rows[0]] == [
        *("a100", "flash", "70.0 %", "a", "60.0 %", "80.0 %", "3")
    ]
    for word in ("near", "far", "median +110 %"):
        assert word in section.picture.svg


def test_many_groups_are_cut_with_a_remark() -> None:
    count = GROUPS + 5
    section = accuracy_section(steps(*({"group": f"g{n}"} for n in range(count))), pd.DataFrame([CONSTANT]))
    (table,) = [table for table in section.tables if table.title.startswith("Groups")]
    assert (len(table.rows), section.groups) == (GROUPS, count)
    assert f"{GROUPS} of {count}" in table.said
