"""Published figures and tables on the page: complete, named, linked, without empty tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from suite.claims.claim import Claim, Evidence, Judged, Verdict
from suite.config.panels import FigurePanel
from suite.core.record import Source
from suite.report.load import read_store
from suite.report.page import page
from suite.report.panels import published_figures
from suite.report.plots import plots
from suite.report.tables import record_tables
from suite.report.tables.record_tables import Cell
from tests.support.pages import site
from tests.support.report_records import fill, in_store, make, texts

Panel = dict[str, Any]


def panel(title: str, figure: str = "", publication: str = "", value: float = 1.0) -> Panel:
    times = {"axonn": [value, 2.0]}
    figure_panel = FigurePanel(
        title=title,
        unit="s",
        x=["8", "16"],
        ours=times,
        axis="GPUs",
        quantity="batch time",
        figure=figure,
        publication=publication,
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
    published = [panel(f"panel {number}", "Figure 6", "SAMO") for number in range(5)]
    html = site(page.render(in_store(figure("own", [*map(panel, "abc"), *published]))))
    paper, experiments = html.split('<section class="experiment"', 1)
    assert [paper.count(f">Panel {number} <") for number in range(5)] == [1] * 5
    assert paper.count("<svg") == 5
    assert experiments.count("<svg") == 2
    assert "Panel 0" not in experiments


def test_each_paper_begins_with_its_figures_under_their_published_names():
    displays = [("a", "Figure 11", "AxoNN"), ("b", "Figure 9", "AxoNN"), ("c", "Table II", "SAMO"), ("d", "", "")]
    html = site(page.render(in_store(figure("own", [panel(*display) for display in displays]))))
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
    html = site(page.render(in_store(*records)))
    assert html.count("<svg") == 1
    assert "AxoNN, simulated, 8: 7" in html


def test_a_figure_without_panels_takes_those_of_its_experiment_once(tmp_path):
    fill(tmp_path)
    html = site(
        page.render(read_store(tmp_path), judged=[judged(claim("axonn.x", paper="axonn"), Verdict.MATCHED, 10.5)])
    )
    section = html.partition('<h3 id="paper-axonn-figure-6">')[2].partition("</section>")[0]
    assert "<h4>A batch over its ranks" in section
    assert section.count("<svg") == html.count("<h4>A batch over its ranks") == 1
    assert 'href="#claim-axonn.x"' in section
    assert '<a href="#e1">A pipeline of two stages</a>' in section


def test_an_experiment_alone_has_the_panels_of_its_figures(tmp_path):
    """They have no page of a paper to stand on."""
    fill(tmp_path)
    published = figure("own", [panel("batch time", "Figure 6", "AxoNN")], experiment="demo")
    own, claims = read_store(tmp_path), [judged(claim("axonn.x", paper="axonn"), Verdict.MATCHED, 10.5)]
    both = replace(own, entries=(*own.entries, *in_store(published).entries))
    for runs, titles in ((own, ("A batch over its ranks",)), (both, ("A batch over its ranks", "Figure 6 of AxoNN"))):
        pages = page.render(runs, judged=claims, alone=True)
        assert all(name.startswith("experiment-") for name in pages if name.endswith(".html"))
        alone = pages["experiment-demo.html"]
        assert [alone.count(f"<h4>{title}") for title in titles] == [1] * len(titles)
        assert "are shown at" not in alone


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
    rows = [{"system": "a", "time": 1.0, "loss": math.nan}, {"system": "b", "loss": Cell()}]
    filled = record_tables.with_values(record_tables.tabled("t", rows))
    assert texts(filled) == [["a", "1"], ["b", "–"]]
    assert list(filled.frame) == ["system", "time"]
    assert record_tables.with_values(record_tables.tabled("t", [{"system": "a", "time": math.nan}])) is None
    assert record_tables.with_values(None) is None
