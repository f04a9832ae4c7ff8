"""Claims on the page: verdict, values, and links to their runs."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from suite.claims import load
from suite.claims.claim import AnswerRow, Check, Claim, Decision, Evidence, Judged, Scope, Sensitivity, Turn, Verdict
from suite.core.record import Metric, Source
from suite.report.load import read_store
from suite.report.page.page import breakable, render
from suite.report.tables.claim_tables import anchor, plain, published, setting, short
from suite.report.tables.scorecard import COLUMNS, SIGNS, TONES, scores
from tests.support.pages import Page, site
from tests.support.report_records import in_store, make, store

DECISIONS = (
    Decision(
        id="A1",
        weight="B",
        paper="axonn, samo",
        where="Section V against Table I",
        finding="two numbers for one thing",
        decision="the table",
        claims=("demo.speedup", "demo.gone"),
    ),
)


def claim(name: str = "demo.speedup", **changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "paper": "axonn",
        "where": "Table I",
        "quantity": "speedup",
        "system": "axonn",
        "versus": "gpipe",
        "value": 1.5,
        "unit": "ratio",
        "kind": "ratio",
        "reach": "cpu",
        "setting": {"gpus": 48, "model": "gpt_tiny"},
        "terms": ("axonn",),
    }
    return Claim(id=name, **fields | changes)


def judged(judged_claim: Claim, verdict: Verdict = Verdict.NOT_RUN, **changes: Any) -> Judged:
    """A measured value with this verdict, or none where nothing was run."""
    if verdict is not Verdict.NOT_RUN:
        changes = {"evidence": Evidence.MEASURED} | changes
    return Judged(judged_claim, verdict, changes.pop("why", "the reason"), **changes)


class Cells:
    """Tables of a page by their label: the text and the links of every cell, row by row."""

    def __init__(self, page: str) -> None:
        self.page = page

    def _rows(self, label: str) -> list[str]:
        table = re.search(f'<table[^>]*aria-label="{label}".*?</table>', self.page, re.DOTALL)
        assert table is not None, label
        return re.findall("<tr.*?</tr>", table[0], re.DOTALL)[1:]

    def rows(self, label: str) -> list[list[str]]:
        """Text of each cell; small print, summaries and italics are behind a bar."""
        parts = [re.findall("<t[hd].*?</t[hd]>", row, re.DOTALL) for row in self._rows(label)]
        return [[words(re.sub("<(small|summary|i)\\b[^>]*>", " | ", cell)) for cell in row] for row in parts]

    def links(self, label: str) -> list[list[str]]:
        return [re.findall('href="([^"]*)"', row) for row in self._rows(label)]


def words(markup: str) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", "", markup)).split())


def test_the_scorecard_counts_every_claim_once() -> None:
    judgements = [judged(claim(f"a.{i}"), verdict) for i, verdict in enumerate(Verdict)]
    judgements += [judged(claim("s.1", paper="samo"), Verdict.MATCHED, evidence=Evidence.SIMULATED)]
    by_paper, by_scope, by_evidence = (score.counts for score in scores(judgements))
    assert by_paper.T.to_dict("list") == {"AxoNN": [1] * 14, "SAMO": [0, 1] + [0] * 12}
    assert [COLUMNS[name].verdict for name in by_paper] == list(Verdict)
    assert by_scope.sum(axis=1).to_dict() == {"as published": 15}
    assert [*by_evidence.sum(axis=1).items()] == [("measured", 13), ("simulated", 1), ("none", 1)]


def test_measured_and_derived_are_counted_apart() -> None:
    for verdict in Verdict:
        judgements = [judged(claim("a"), verdict), judged(claim("b"), verdict, evidence=Evidence.DERIVED)]
        counted = [*scores(judgements)[0].counts.sum().items()]
        apart = verdict in (Verdict.REPRODUCED, Verdict.TREND_ONLY, Verdict.DIFFERS)
        assert counted == ([(f"{verdict}, {kind}", 1) for kind in ("measured", "derived")] if apart else [(verdict, 2)])
    judgements = [judged(claim("a"), Verdict.TREND_ONLY, scope=Scope.STAND_IN), judged(claim("b"))]
    assert [*scores(judgements)[1].counts.sum(axis=1).items()] == [("as published", 1), ("stand-in", 1)]
    assert len(set(SIGNS.values())) == len(Verdict)
    assert set(TONES) == set(SIGNS) == set(Verdict)


@pytest.fixture
def answered(tmp_path: Path) -> tuple[Path, list[Judged]]:
    store(tmp_path, make("axonn 2x1"), "a b#c.json")
    run = {"record": "records/a b#c.json", "experiment": "demo", "command": "suite run experiment=demo"}
    smaller = {"scope": Scope.STAND_IN, "stand_in": "a smaller model"}
    row = AnswerRow(Evidence.MEASURED, experiment="demo", labels=("x",), metric="batch_time")
    order = claim("demo.order", value="axonn is fastest", check=Check.LEAST, terms=("axonn", "gpipe"))
    judgements = [
        judged(claim(), Verdict.TREND_ONLY, ours=((1.25,),), why="our 1.25 is outside", **run | smaller),
        judged(order, Verdict.REPRODUCED, ours=((1.0, 2.0), (3.0, 4.0)), **run),
        judged(claim("demo.asked", answers=(row,))),
        judged(claim("demo.other", value=(2.0, float("inf")))),
    ]
    return tmp_path, judgements


def test_claim_row_has_values_and_a_link_to_the_record(answered) -> None:
    folder, judgements = answered
    cells = Cells(site(render(read_store(folder), judged=judgements, decisions=DECISIONS)))
    first, order, unanswered, other = cells.rows("Every claim")
    assert first == [
        "demo.speedup",
        "AxoNN | Table I",
        "axonn | versus gpipe",
        "speedup | gpus 48, model gpt_tiny",
        "1.5",
        "1.25 · run",
        "ratio",
        "measured",
        "stand-in | a smaller model",
        "≈ trend only",
        "our 1.25 is outside | details decision A1 suite run experiment=demo",
    ]
    links = cells.links("Every claim")[0]
    assert links == ["./records/a%20b%23c.json", "#e1-r1", "#decision-A1"]
    assert (folder / "records/a b#c.json").is_file()
    for name in ("claim-demo.speedup", "e1-r1", "decision-A1"):
        assert f'id="{name}"' in cells.page
    assert order[4:6] == ["axonn is fastest", "4 values · run | axonn: 1, 3 gpipe: 2, 4"]
    assert order[8] == "as published"
    assert unanswered[5] == unanswered[7] == "–"
    assert other[4] == "at least 2"


def test_experiment_shows_its_claims_and_runs_link_to_their_configuration(answered) -> None:
    folder, judgements = answered
    pages = render(read_store(folder), judged=judgements, decisions=DECISIONS)
    text = Page(pages["experiment-demo.html"]).words()
    answers = {"speedup": "open", "order": "holds (measured)", "asked": "open"}
    assert all(f"demo.{name} : {answer}" in text.replace(":", " :") for name, answer in answers.items())
    cells = Cells(site(pages))
    rows = cells.rows("Claims of Table I of AxoNN")
    assert rows[0] == [
        "demo.speedup | Table I",
        "speedup | axonn versus gpipe",
        "1.5",
        "1.25 · run",
        "ratio",
        "measured",
        "open",
    ]
    assert cells.links("Claims of Table I of AxoNN")[0][0] == "#claim-demo.speedup"
    (run,) = cells.rows("Runs and the commands that make them")
    assert run[3] == "suite run experiment=demo system=axonn grid.inter=2 grid.data=1"
    assert cells.links("Systems side by side")[0] == ["#e1-r1"]
    label = "Contradictions in the papers, and the decisions"
    assert cells.rows(label)[0][2:] == ["two numbers for one thing", "the table", "demo.speedup"]
    assert cells.links(label)[0] == ["#claim-demo.speedup"]  # a claim that is not there is no link


def test_many_values_stand_each_beside_its_name() -> None:
    names = tuple(f"t{number}" for number in range(5))
    wide = judged(claim("wide", terms=names), Verdict.DIFFERS, ours=((1.0, 2.0, 3.0, 4.0, 5.0),))
    long = judged(claim("long"), Verdict.DIFFERS, ours=tuple((float(number),) for number in range(6)))
    gone = judged(claim("gone"), Verdict.REPRODUCED, ours=((1.5,),), record="records/x.json", command="suite claims")
    rows = Cells(site(render(in_store(), judged=[wide, long, gone]))).rows("Every claim")
    assert rows[0][5] == "5 values | t0: 1 t1: 2 t2: 3 t3: 4 t4: 5"
    assert rows[1][5] == "0, 1, 2, 3, … (2 more)"
    assert (rows[2][5], "suite claims" in rows[2][10]) == ("1.5", True)  # its run is not shown


def test_what_a_record_says_of_a_value_stands_beside_it() -> None:
    metrics = {"demo.counted": Metric("", "", (1.5,), "counted twice"), "other": Metric("", "", (), "a note")}
    counted = judged(claim("demo.counted"), Verdict.REPRODUCED, ours=((1.5,),), record="0.json", experiment="demo")
    page = site(render(in_store(make("x", metrics=metrics)), judged=[counted]))
    assert "counted twice" in Cells(page).rows("Every claim")[0][10]
    assert "other: a note" in re.sub("<[^>]*>", "", page)
    assert "demo.counted: counted twice" not in page


def test_details_of_a_claim_unfold() -> None:
    """Other answers with their evidence and verdicts, the assertion, its limits, and the command."""
    answer = AnswerRow(Evidence.SIMULATED, figure="f", function="suite.papers.f")
    hedged = claim("demo.x", answers=(answer,), asserts="Axonn is quick.", limits="The batch is smaller.", hedge="may")
    other = judged(hedged, Verdict.DIFFERS, evidence=Evidence.DERIVED, why="our 3 is outside")
    gone = judged(hedged, why="no record holds it")
    model = judged(hedged, Verdict.MATCHED, evidence=Evidence.SIMULATED, ours=((1.5,),), note="a remark")
    whole = replace(model, others=(other, gone))
    (row,) = Cells(site(render(in_store(), judged=[whole]))).rows("Every claim")
    assert (row[7], row[9]) == ("simulated", "∼ matched by the model")
    for text in (
        *("a remark", "derived: differs, our 3 is outside", "not run, no record holds it"),
        *("Axonn is quick.", "may", "The batch is smaller.", "suite claims answer demo.x"),
    ):
        assert text in row[10]


def test_a_simulated_verdict_shows_its_sensitivity_and_whether_it_turns() -> None:
    turn = Turn("adapters", 1.0, "not matched by the model")
    sensitive = {
        "a.turns": Sensitivity("a.turns", "matched by the model", (30.0, 54.25), (turn,), varied=2),
        "a.stays": Sensitivity("a.stays", "matched by the model", (9.0, 10.0), varied=2),
        "a.measured": Sensitivity("a.measured", "reproduced", (1.0, 2.0), (turn,), varied=2),
    }
    names = ("a.turns", "a.stays", "a.unvaried", "a.measured")
    evidence = dict.fromkeys(names, Evidence.SIMULATED) | {"a.measured": Evidence.MEASURED}
    judgements = [judged(claim(name), Verdict.MATCHED, evidence=evidence[name], ours=((1.5,),)) for name in names]
    page = site(render(in_store(), judged=load.with_sensitivity(judgements, sensitive)))
    rows = Cells(page).rows("Every claim")
    assert [row[9] for row in rows] == ["∼ matched by the model turns"] + ["∼ matched by the model"] * 3
    assert "turns: not matched by the model at adapters=1; our value 30 to 54.25" in rows[0][10]
    assert "stays; our value 9 to 10" in rows[1][10]
    assert "our value" not in rows[2][10] + rows[3][10]
    menu = page.partition('name="sensitivity"')[2].partition("</select>")[0]
    assert re.findall(">([^<]+)</option>", menu) == ["all", "turns", "stays", "not varied", "no model"]


def test_front_page_tells_runs_of_this_machine_from_committed_records() -> None:
    found = [judged(claim(f"a.{n}"), Verdict.DIFFERS, record="records/a.json") for n in range(2)]
    found += [judged(claim("b"), Verdict.DIFFERS, record="measured/far/b.jsonl#1"), judged(claim("c", reach="gpu"))]
    text = Page(render(in_store(), judged=found)["index.html"]).words()
    assert "Measured verdicts: 2 rest on runs of this machine, 1 rest on committed runs (far)." in text
    assert "1 claim needs a run on a GPU" in text


def test_analytic_experiment_has_no_table_of_systems() -> None:
    for source, shown in ((Source.ANALYTIC, False), (Source.MEASURED, True)):
        assert ('aria-label="Systems side by side"' in site(render(in_store(make("x", source=source))))) is shown


def test_both_sides_of_an_expectation_lead_to_their_runs() -> None:
    ratio = {"what": "quicker", "kind": "ratio", "system": "b", "at_most": 1.0}
    rows = [ratio | {"versus": ["c", "d"]}, ratio | {"versus": "e"}]
    config = {"experiment": {"expect": rows}}
    runs = [make(label, (seconds,), config=config) for label, seconds in (("b", 1.0), ("c", 3.0), ("d", 2.0))]
    cells = Cells(site(render(in_store(*runs))))
    compared = [row[1].split(" |")[0] for row in cells.rows("Expectations and results")]
    assert compared == ["b / d, the quickest of its 2 peers", "b / e"]
    assert cells.links("Expectations and results") == [["#e1-r1", "#e1-r3"], ["#e1-r1"]]


def test_numbers_as_the_papers_print_them() -> None:
    """Our own numbers keep counts, and four digits of others."""
    for value, text, ours in (
        (4.0, "4", "4"),
        (124439808.0, "124.44 million", "124.44 million"),
        (235000.0, "235\u202f000", "235\u202f000"),
        (5e10, "50 billion", "50 billion"),
        (3e16, "3e16", "3e16"),
        (-0.0123456789, "-0.0123457", "-0.01235"),
        (1e-12, "1e-12", "1e-12"),
        (float("inf"), "∞", "∞"),
        (float("-inf"), "−∞", "−∞"),
        (float("nan"), "–", "–"),
    ):
        assert (plain(value), short(value)) == (text, ours)
    for printed, text, key in (
        ((49.4, 54.78), "49.4 to 54.78", 49.4),
        ((float("-inf"), 3.0), "at most 3", 3.0),
        ((13.0, float("inf")), "at least 13", 13.0),
        ("independent of G_inter", "independent of G_inter", None),
    ):
        cell = published(claim(value=printed))
        assert (cell.text, cell.value) == (text, key)


def test_a_long_setting_is_cut_between_its_parts() -> None:
    crowded = claim(setting={"model": "m" * 30, "gpus": 48, "machine": "s" * 40})
    assert setting(crowded) == "model " + "m" * 30 + ", gpus 48, …"
    assert len(setting(claim(setting={"model": "m" * 500}))) < 80


def test_places_to_break_stand_inside_names_alone() -> None:
    assert breakable("a_b.c 1.5 <i>_</i>") == "a_<wbr>b.<wbr>c 1.5 &lt;i&gt;_&lt;/i&gt;"


def test_two_hostile_ids_have_two_anchors() -> None:
    assert len({anchor(name) for name in ("a b", "a/b", "a_b", "a\u202eb", "-a b")}) == 5
