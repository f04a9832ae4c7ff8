"""Pages of thousands of records: visible cuts, linear work, equal bytes."""

from __future__ import annotations

import cProfile
import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import pytest

from suite.claims import judge, load
from suite.core.record import Outcome
from suite.report import write_report
from suite.report.load import StoredRecord, read_store
from suite.report.page import page, sections
from suite.report.tables import record_tables
from tests.support import stores
from tests.support.pages import site
from tests.support.report_records import in_store, make

NAMES = ("samo_fig6", "samo_fig8", "pipeoptim_fig2_seeds")
COUNT = 90
SMALL = {"RUNS": 3, "EARLIER": 1, "BOXES": 100}


def test_a_table_that_is_cut_says_so(monkeypatch):
    monkeypatch.setattr(record_tables, "ROWS", 7)
    table = record_tables.tabled("t", [{"c": str(row)} for row in range(9)])
    cut = record_tables.first_rows(table)
    assert (len(cut.rows), cut.said[:6]) == (7, "7 of 9")
    assert record_tables.first_rows(cut) is cut


def test_long_reason_keeps_its_ends_and_names_the_file_of_the_whole():
    def lines(reason: str) -> list[str]:
        return sections.reason(StoredRecord(make("a", reason=reason), "records/a.json")).splitlines()

    assert lines("one\ntwo") == ["one", "two"]
    assert lines("")[0]
    first, last = lines("x" * 500)
    assert (first[:400], len(first) < 410, "records/a.json" in last) == ("x" * 400, True, True)
    many = lines("\n".join(map(str, range(200))))
    assert (many[:8], many[9:]) == ([str(n) for n in range(8)], [str(n) for n in range(168, 200)])
    assert "160" in many[8]
    assert "records/a.json" in many[8]


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    stores.fill(folder, COUNT, machines=("", "laptop"), names=NAMES)
    return folder


@contextmanager
def limits(**most: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SMALL, **most}.items():
            patch.setattr(sections, name, value)
        yield


@pytest.fixture(scope="module")
def html(large) -> str:
    with limits():
        return site(write_report(large))


@pytest.mark.slow("a page of hundreds of records")
def test_omitted_runs_are_counted_and_are_in_records_csv(large, html):
    with (large / "records.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == COUNT
    text = unescape(html)
    pairs = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) runs are shown", text)]
    assert pairs
    assert all(here < of for here, of in pairs)
    for heading, most in (("Runs and the commands", "RUNS"), ("Earlier records", "EARLIER")):
        tables: list[str] = re.findall(rf'<table aria-label="{heading}.*?</table>', html, re.DOTALL)
        assert max(table.count("<tr id=") for table in tables) == SMALL[most]
    assert max(path.stat().st_size for path in large.glob("*.html")) < 2_000_000
    for section in html.split('<section class="experiment"')[1:]:
        assert section.count('class="box"') <= SMALL["BOXES"]


def test_every_link_inside_the_page_leads_somewhere(large, html):
    ids = re.findall(r' id="([^"]*)"', html)
    assert set(re.findall(r'href="#([^"?]+)"', html)) <= set(ids)
    for link in set(re.findall(r'href="\./([^"]+)"', html)):
        assert (large / link.partition("#")[0]).is_file(), link


def test_newest_runs_and_runs_behind_verdicts_are_shown():
    runs = [make(f"s{n} 1x1", provenance={"started": f"2026-01-{n + 1:02}T00:00:00+00:00"}) for n in range(9)]
    newest = sections._newest(list(in_store(*runs).entries), 4, {"1.json"})
    assert [entry.file for entry in newest] == [f"{n}.json" for n in (1, 6, 7, 8)]


@contextmanager
def counted(calls: list[int]) -> Iterator[None]:
    profile = cProfile.Profile()
    profile.enable()
    yield
    profile.disable()
    calls.append(sum(entry.callcount for entry in profile.getstats()))


@pytest.mark.slow("pages of many records")
def test_work_grows_no_faster_than_the_records(tmp_path):
    """Counted in calls: twice as many records more are at most twice as many calls more, before anything is shown and
    in showing it. Pictures are bounded."""
    some_claims, counts, counts_shown = load.claims()[::12], list[int](), list[int]()
    site(page.render(read_store(tmp_path)))  # templates are compiled
    for count in (32, 64, 128):
        folder = tmp_path / str(count)
        stores.fill(folder, count, machines=("",), names=NAMES)
        with limits(RUNS=10**6, EARLIER=10**6):
            store = read_store(folder)
            with counted(counts):
                judged = judge.judge(some_claims, store)
                layout = page.layout(store, judged)
            with counted(counts_shown):
                site(page.render(store, judged=judged, held=layout))
    for calls in (counts, counts_shown):
        assert calls[2] - calls[1] < 2.5 * (calls[1] - calls[0])  # outlines of pictures begin with the largest


def test_a_run_that_somebody_ended_is_nobodys_fault():
    ended = make("axonn 2x1", outcome=Outcome.CANCELLED, reason="scancel")
    html = site(page.render(in_store(ended, make("gpipe 2x1", outcome=Outcome.FAILED, reason="boom"))))
    assert html.count('class="badge is-cancelled">cancelled<') == 2  # next to its name, and with its reason
    assert "0 ended well, 1 failed, 1 cancelled" in html
