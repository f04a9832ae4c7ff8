"""Published figures and tables on the page: complete, named, linked, without empty tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.claims.claim import Check, Claim, Evidence, Judged, Scope, Verdict
from suite.core.figure import FigurePanel
from suite.core.record import Source
from suite.report.load import read_store
from suite.report.page import page, page_budget
from suite.report.panels import published_figures
from suite.report.plots import plots
from suite.report.tables import record_tables, summary_tables
from suite.report.tables.record_tables import Cell, Column, Table
from tests.support.report_records import fill, in_store, make, store, texts

Panel = dict[str, Any]


def panel(title: str, figure: str = "", publication: str = "", value: float = 1.0) -> Panel:
    times = {"axonn": [value, 2.0]}
    figure_panel = FigurePanel(
        title, "s", ["8", "16"], times, axis="GPUs", quantity="batch time", figure=figure, publication=publication
    )
    return figure_panel.to_record()


def figure(label: str, panels: Sequence[Panel], **changes: Any) -> Any:
    return make(label, **{"panels": list(panels), "metrics": {}, "source": Source.SIMULATED} | changes)


def claim(name: str, where: str = "Figure 6", value: Any = 10.0, **changes: Any) -> Claim:
    fields: dict[str, Any] = {"paper": "samo", "where": where, "quantity": "time", "system": "axonn", "unit": "s"}
    return Claim(id=name, value=value, **fields | {"kind": "number", "reach": "cpu"} | changes)


def judged(judged_claim: Claim, verdict: Verdict, *ours: float, evidence: Evidence = Evidence.SIMULATED) -> Judged:
    return Judged(judged_claim, verdict, "the reason", evidence, ours=tuple((value,) for value in ours))


# the figures


def test_no_limit_on_pictures_cuts_a_published_figure(monkeypatch):
    monkeypatch.setattr(plots, "MOST_PANELS", 2)
    monkeypatch.setattr(page_budget, "PICTURES", 1)
    published = [panel(f"panel {number}", "Figure 6", "SAMO") for number in range(5)]
    html = page.render(in_store(figure("own", [*map(panel, "abc"), *published])))
    paper, experiments = html.split('<section class="experiment"', 1)
    assert [paper.count(f">Panel {number} <") for number in range(5)] == [1] * 5
    assert paper.count("<svg") == 5
    assert experiments.count("<svg") == 1
    assert "Panel 0" not in experiments


def test_each_paper_begins_with_its_figures_under_their_published_names():
    displays = [("a", "Figure 11", "AxoNN"), ("b", "Figure 9", "AxoNN"), ("c", "Table II", "SAMO"), ("d", "", "")]
    html = page.render(in_store(figure("own", [panel(*display) for display in displays])))
    names = re.findall(r'<h3 id="(paper-[^"]+)">([^<]+)</h3>', html)
    assert names == [
        ("paper-axonn-figure-9", "Figure 9 of AxoNN"),
        ("paper-axonn-figure-11", "Figure 11 of AxoNN"),
        ("paper-samo-table-ii", "Table II of SAMO"),
    ]
    for anchor, _ in names:
        assert f'href="#{anchor}"' in html


def test_figure_in_several_records_is_drawn_from_the_newest():
    records = []
    for label, value, day in (("old", 1.0, "01"), ("new", 7.0, "02")):
        changed = make(label).provenance | {"started": f"2025-03-{day}T10:00:00+00:00"}
        records.append(figure(label, [panel("batch time", "Figure 6", "SAMO", value)], provenance=changed))
    html = page.render(in_store(*records))
    assert html.count("<svg") == 1
    assert "axonn, simulated, 8: 7" in html


def test_a_figure_without_panels_takes_those_of_its_experiment_once(tmp_path):
    fill(tmp_path)
    html = page.render(read_store(tmp_path), judged=[judged(claim("axonn.x", paper="axonn"), Verdict.MATCHED, 10.5)])
    section = html.partition('<h3 id="paper-axonn-figure-6">')[2].partition("</section>")[0]
    assert "<h4>A batch over its ranks" in section
    assert section.count("<svg") == html.count("<h4>A batch over its ranks") == 1
    assert 'href="#claim-axonn.x"' in section
    assert '<a href="#e1">A pipeline of two stages</a>' in section


def test_a_place_names_its_figures():
    for where, names in (
        ("Figures 6, 7 and 8, Table II", {"Figure 6", "Figure 7", "Figure 8", "Table II"}),
        ("Figures 3 to 5, Section 4", {"Figure 3", "Figure 4", "Figure 5"}),
        ("Section V-B", set()),
        ("Figures 1 to 999999999", {f"Figure {number}" for number in range(1, 100)}),
    ):
        assert published_figures.figures_in(where) == names


# tables


def test_columns_and_tables_without_values_are_left_out():
    dash = Cell("–", tone="faint")
    columns = (Column("system"), Column("time"), Column("loss"))
    table = Table("t", columns, ((Cell("a"), Cell("1", 1.0), dash), (Cell("b"), dash, Cell(""))))
    filled = record_tables.with_values(table)
    assert texts(filled) == [["a", "1"], ["b", "–"]]
    assert [column.name for column in filled.columns] == ["system", "time"]
    assert record_tables.with_values(Table("t", columns, ((Cell("a"), dash, dash),))) is None
    assert record_tables.with_values(None) is None


# what the top answers


def test_distance_is_that_of_the_nearest_printed_value():
    assert published_figures.distance(judged(claim("a"), Verdict.NOT_MATCHED, 9.0, 13.0)) == pytest.approx(0.3)
    spread = claim("b", value=(10.0, 20.0), check=Check.RANGE)
    assert published_figures.distance(judged(spread, Verdict.MATCHED, 12.0)) == 0.0
    assert published_figures.distance(judged(spread, Verdict.NOT_MATCHED, 25.0, 8.0)) == pytest.approx(0.25)
    above = claim("c", value=(2.0, math.inf), check=Check.RANGE)
    assert published_figures.distance(judged(above, Verdict.NOT_MATCHED, 1.0)) == 0.5
    assert math.isnan(published_figures.distance(judged(claim("d", value="a < b"), Verdict.MATCHED, 1.0)))
    assert math.isnan(published_figures.distance(judged(claim("e"), Verdict.NOT_RUN)))


def test_the_figure_that_is_matched_worst_stands_first():
    judgements = [
        judged(claim("samo.near"), Verdict.MATCHED, 10.1),
        judged(claim("samo.far", where="Figure 7"), Verdict.NOT_MATCHED, 30.0),
        judged(claim("samo.order", where="Figure 8", value="a < b"), Verdict.MATCHED, 1.0),
    ]
    near = published_figures.claim_tables.claim_context(in_store(), {}, judgements, ())
    table = summary_tables.worst(published_figures.papers([], judgements, near))
    cells = [(row[0].links[0][1], row[1].text, row[3].text, row[4].text, row[5].text) for row in table.rows]
    assert cells == [
        ("Figure 7 of SAMO", "200 %", "10", "30", "1 not matched by the model"),
        ("Figure 6 of SAMO", "1 %", "10", "10.1", "1 matched by the model"),
        ("Figure 8 of SAMO", "–", "–", "–", "1 matched by the model"),
    ]
    assert table.rows[0][0].links[0][0] == "#paper-samo-figure-7"


def test_the_top_lists_what_is_measured_and_what_is_contradicted():
    judgements = [
        judged(claim("samo.m", asserts="It takes ten seconds."), Verdict.REPRODUCED, 10.2, evidence=Evidence.MEASURED),
        judged(claim("samo.d"), Verdict.REPRODUCED, 10.0, evidence=Evidence.DERIVED),
        judged(claim("samo.x"), Verdict.DIFFERS, 3.0, evidence=Evidence.MEASURED),
        judged(claim("samo.c"), Verdict.CONTRADICTED, 12.0, evidence=Evidence.PRINTED),
    ]
    [(heading, table)] = summary_tables.measured(judgements, published_figures.claim_tables.ClaimContext())
    assert heading.startswith("SAMO: 1 ")
    assert [(row[0].links[0][1], row[1].text, row[2].text, row[3].text) for row in table.rows] == [
        ("samo.m", "It takes ten seconds.", "10", "10.2")
    ]
    assert [row[6].text for row in table.rows] == ["as published"]
    against = summary_tables.contradicted(judgements)
    assert [(row[0].links[0][1], row[2].text, row[3].text) for row in against.rows] == [("samo.c", "10", "12")]


def test_measured_claim_shows_scope_and_machine(tmp_path):
    store(tmp_path, make("a"), "a.json")
    committed = tmp_path / "measured" / "h200"
    committed.mkdir(parents=True)
    commit = {"commit": {"hash": "0123456789abcdef", "dirty": False}}
    (committed / "a.jsonl").write_text(make("b", provenance=commit).to_json(None))
    here, there, stand_in = "records/a.json", "measured/h200/a.jsonl#1", {"stand_in": "digits", "scope": Scope.STAND_IN}
    for file, changes, text, details in (
        (here, {}, "as published", []),
        (here, {"stand_in": "a small graph"}, "as published", ["a small graph"]),
        (here, stand_in, "stand-in: digits", []),
        (there, {}, "as published", ["h200 at 01234567"]),
        (there, stand_in, "stand-in: digits", ["h200 at 01234567"]),
    ):
        judgement = judged(claim("samo.m"), Verdict.REPRODUCED, 10.0, evidence=Evidence.MEASURED)
        judgement = replace(judgement, record=file, **changes)
        near = published_figures.claim_tables.claim_context(read_store(tmp_path), {}, [judgement], ())
        [(_, table)] = summary_tables.measured([judgement], near)
        [row] = table.rows
        assert row[6].text == text
        assert [name for name in ("a small graph", "digits", "h200 at 01234567") if name in row[6].detail] == details


def test_values_of_several_terms_stand_each_next_to_its_name():
    judgement = judged(claim("samo.c", terms=("L = 2", "L = 3")), Verdict.CONTRADICTED, 1.0, evidence=Evidence.DERIVED)
    assert texts(summary_tables.contradicted([replace(judgement, ours=((4.0, 6.0),))]))[0][3] == "L = 2: 4, L = 3: 6"
