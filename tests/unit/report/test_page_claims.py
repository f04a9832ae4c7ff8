"""Claims on the page: verdict, values, and links to their runs."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from suite.core.claim import (
    AnswerRow,
    Cases,
    Check,
    Claim,
    Decision,
    Evidence,
    Judged,
    Scope,
    Sensitivity,
    Turn,
    Verdict,
)
from suite.core.record import Metric, Source
from suite.papers.common import claims
from suite.report import write_report
from suite.report.load import read_store
from suite.report.page.page import breakable, render
from suite.report.tables.claim_tables import anchor, plain, published, setting, short
from suite.report.tables.scorecard import SIGNS, TONES, scores

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


class Cells(HTMLParser):
    """Tables by their label: the text and the links of every cell, row by row, and the ids of rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.links: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.label: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        if has.get("id"):
            self.ids.append(str(has["id"]))
        if tag == "table":
            self.label = str(has["aria-label"])
            self.tables.setdefault(self.label, [])
            self.links.setdefault(self.label, [])
        elif self.label is None:
            return
        elif tag == "tr":
            self.tables[self.label].append([])
            self.links[self.label].append([])
        elif tag in {"td", "th"}:
            self.tables[self.label][-1].append("")
        elif tag == "a":
            self.links[self.label][-1].append(str(has["href"]))
        elif tag in {"small", "summary", "i"}:
            self.handle_data(" | ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.label = None

    def handle_data(self, data: str) -> None:
        if self.label is not None and self.tables[self.label] and self.tables[self.label][-1]:
            self.tables[self.label][-1][-1] += data

    def rows(self, label: str) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self.tables[label]][1:]


def test_the_scorecard_counts_every_claim_once() -> None:
    judgements = [judged(claim(f"a.{i}"), verdict) for i, verdict in enumerate(Verdict)]
    judgements += [judged(claim("s.1", paper="samo"), Verdict.MATCHED, evidence=Evidence.SIMULATED)]
    by_paper, by_scope, by_evidence = scores(judgements)
    assert [(line.name, [c.count for c in line.counts], line.total) for line in by_paper.lines] == [
        ("AxoNN", [1] * 14, 14),
        ("SAMO", [0, 1] + [0] * 12, 1),
    ]
    assert [c.verdict for c in by_paper.total.counts] == list(Verdict)
    assert [c.count for c in by_paper.total.counts] == [1, 2] + [1] * 12
    assert by_paper.total.total == 15
    assert [(line.name, line.total) for line in by_scope.lines] == [("as published", 15)]
    assert [(line.name, line.total) for line in by_evidence.lines] == [("measured", 13), ("simulated", 1), ("none", 1)]


@pytest.mark.parametrize(
    ("verdict", "names"),
    [
        (Verdict.REPRODUCED, {"reproduced, measured": 1, "reproduced, derived": 1}),
        (Verdict.TREND_ONLY, {"trend only, measured": 1, "trend only, derived": 1}),
        (Verdict.DIFFERS, {"differs, measured": 1, "differs, derived": 1}),
        (Verdict.CONTRADICTED, {"contradicted": 2}),
        (Verdict.DIFFERS_ON_STAND_IN, {"differs on a stand-in": 2}),
    ],
)
def test_measured_and_derived_are_counted_apart(verdict: Verdict, names: dict[str, int]) -> None:
    judgements = [judged(claim("a"), verdict), judged(claim("b"), verdict, evidence=Evidence.DERIVED)]
    counted = scores(judgements)[0].total.counts
    assert {count.name: count.count for count in counted} == names
    assert {count.evidence for count in counted} == ({"measured", "derived"} if len(names) == 2 else {""})


def test_claims_by_scope_stand_apart() -> None:
    judgements = [judged(claim("a"), Verdict.TREND_ONLY, scope=Scope.STAND_IN), judged(claim("b"))]
    assert [(line.name, line.total) for line in scores(judgements)[1].lines] == [("as published", 1), ("stand-in", 1)]


def test_every_verdict_has_a_unique_sign_and_a_tone() -> None:
    assert len(set(SIGNS.values())) == len(Verdict)
    assert set(TONES) == set(SIGNS) == set(Verdict)
    assert [verdict for verdict in Verdict if TONES[verdict] == "good"] == [Verdict.REPRODUCED]


def test_the_page_shows_the_scorecard(tmp_path: Path) -> None:
    judgements = [judged(claim("a.1"), Verdict.REPRODUCED), judged(claim("a.2")), judged(claim("a.3"))]
    page = render(read_store(tmp_path), judged=judgements)
    cells = Cells(page)
    assert [" ".join(cell.split()) for cell in cells.tables["By paper"][0][1:]] == [
        "✓ reproduced, measured",
        "○ not run",
        "claims",
    ]
    assert cells.rows("By paper") == [["AxoNN", "1", "2", "3"], ["all", "1", "2", "3"]]
    assert 'data-verdict="reproduced" data-evidence="measured">1</a>' in page
    text = re.sub("<[^>]*>", "", page)
    assert "Of 3 published claims: ✓ 1 reproduced, measured, ○ 2 not run." in text


@pytest.fixture
def answered(tmp_path: Path, make: Callable[..., Any], store: Callable[..., Path]) -> tuple[Path, list[Judged]]:
    store(tmp_path, make("axonn 2x1"), "a b#c.json")
    run = {
        "record": "records/a b#c.json",
        "experiment": "demo",
        "command": "suite run experiment=demo",
    }
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
    cells = Cells(render(read_store(folder), judged=judgements, decisions=DECISIONS))
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
    links = cells.links["Every claim"][1]
    assert links == ["./records/a%20b%23c.json", "#e1-r1", "#decision-A1"]
    assert (folder / "records/a b#c.json").is_file()
    assert {"claim-demo.speedup", "e1-r1", "decision-A1"} <= set(cells.ids)
    assert order[4:6] == ["axonn is fastest", "4 values · run | axonn: 1, 3 gpipe: 2, 4"]
    assert order[8] == "as published"
    assert unanswered[5] == unanswered[7] == "–"
    assert other[4] == "≥ 2"


def test_experiment_shows_the_claims_that_it_answers(answered) -> None:
    folder, judgements = answered
    cells = Cells(render(read_store(folder), judged=judgements))
    rows = cells.rows("The paper’s values and ours")
    assert [row[0] for row in rows] == [f"demo.{name} | AxoNN, Table I" for name in ("speedup", "order", "asked")]
    assert rows[0][2:] == ["1.5", "1.25 · run", "≈ trend only", "our 1.25 is outside"]
    assert cells.links["The paper’s values and ours"][1][0] == "#claim-demo.speedup"


def test_numbers_link_to_the_configuration_of_the_run(answered) -> None:
    folder, judgements = answered
    cells = Cells(render(read_store(folder), judged=judgements))
    (run,) = cells.rows("Runs and the commands that make them")
    assert run[3] == "suite run experiment=demo system=axonn grid.inter=2 grid.data=1"
    assert run[4].startswith("| config")
    assert "grid.inter=2" in run[4].split()
    assert cells.links["Systems side by side"][1] == ["#e1-r1"]


def test_many_values_stand_each_beside_its_name(tmp_path: Path) -> None:
    names = tuple(f"t{number}" for number in range(5))
    wide = judged(claim("wide", terms=names), Verdict.DIFFERS, ours=((1.0, 2.0, 3.0, 4.0, 5.0),))
    long = judged(claim("long"), Verdict.DIFFERS, ours=tuple((float(number),) for number in range(6)))
    rows = Cells(render(read_store(tmp_path), judged=[wide, long])).rows("Every claim")
    assert rows[0][5] == "5 values | t0: 1 t1: 2 t2: 3 t3: 4 t4: 5"
    assert rows[1][5] == "0, 1, 2, 3, … (2 more)"


def test_what_a_record_says_of_a_value_stands_beside_it(tmp_path, make, store) -> None:
    counted = claim("demo.counted")
    answer = make(
        "x", metrics={counted.id: Metric("", "", (1.5,), "counted twice"), "other": Metric("", "", (), "a note")}
    )
    store(tmp_path, answer)
    judgements = [judged(counted, Verdict.REPRODUCED, ours=((1.5,),), record="records/x.json", experiment="demo")]
    page = render(read_store(tmp_path), judged=judgements)
    why = "the reason | details Value: counted twice suite run experiment=demo"
    assert Cells(page).rows("Every claim")[0][10] == why
    assert "<li><b>x</b>: other: a note</li>" in page
    assert "demo.counted: counted twice" not in page


def test_other_answers_stand_beside_the_headline(tmp_path: Path) -> None:
    """Each with its evidence and its verdict; a claim without a run lists its requirements."""
    plain_claim = claim()
    model = judged(plain_claim, Verdict.NOT_MATCHED, evidence=Evidence.SIMULATED, why="our 3 is outside")
    gone = judged(plain_claim, why="no record holds it")
    whole = judged(plain_claim, Verdict.REPRODUCED, ours=((1.5,),), note="a remark", others=(model, gone))
    (row,) = Cells(render(read_store(tmp_path), judged=[whole])).rows("Every claim")
    assert (row[7], row[9]) == ("measured", "✓ reproduced")
    model_told = "Other answer: simulated: not matched by the model, our 3 is outside"
    gone_told = "Other answer: cpu: not run, no record holds it"
    assert row[10] == f"the reason | details Value: a remark {model_told} {gone_told}"


def test_claim_unfolds_assertion_limits_and_command(tmp_path: Path) -> None:
    row = AnswerRow(Evidence.SIMULATED, figure="f", function="suite.papers.f")
    hedged = claim("demo.x", answers=(row,), asserts="Axonn is quick.", limits="The batch is smaller.", hedge="may")
    judgement = judged(hedged, Verdict.MATCHED, evidence=Evidence.SIMULATED, ours=((1.5,),))
    (row_shown,) = Cells(render(read_store(tmp_path), judged=[judgement])).rows("Every claim")
    assert row_shown[10] == (
        "the reason | details The paper asserts: Axonn is quick. Hedge: may"
        " Limits of this check: The batch is smaller. suite claims answer demo.x"
    )


def test_a_simulated_verdict_shows_its_sensitivity_and_whether_it_turns(tmp_path: Path) -> None:
    turn = Turn("adapters", 1.0, "not matched by the model")
    sensitive = {
        "a.turns": Sensitivity("a.turns", "matched by the model", (30.0, 54.25), (turn,), varied=2),
        "a.stays": Sensitivity("a.stays", "matched by the model", (9.0, 10.0), varied=2),
        "a.measured": Sensitivity("a.measured", "reproduced", (1.0, 2.0), (turn,), varied=2),
    }
    names = ("a.turns", "a.stays", "a.unvaried", "a.measured")
    evidence = dict.fromkeys(names, Evidence.SIMULATED) | {"a.measured": Evidence.MEASURED}
    judgements = [judged(claim(name), Verdict.MATCHED, evidence=evidence[name], ours=((1.5,),)) for name in names]
    page = render(read_store(tmp_path), judged=claims.with_sensitivity(judgements, sensitive))
    rows = Cells(page).rows("Every claim")
    assert [row[9] for row in rows] == ["∼ matched by the model turns"] + ["∼ matched by the model"] * 3
    turns = "details Sensitivity: turns: not matched by the model at adapters=1; our value 30 to 54.25"
    assert rows[0][10] == f"the reason | {turns}"
    assert rows[1][10] == "the reason | details Sensitivity: stays; our value 9 to 10"
    assert "Sensitivity" not in rows[2][10] + rows[3][10]
    menu = page.partition('name="sensitivity"')[2].partition("</select>")[0]
    assert re.findall(">([^<]+)</option>", menu) == ["all", "turns", "stays", "not varied", "no model"]
    assert "1 change</a> within the stated ranges" in page


def test_analytic_experiment_has_no_table_of_systems(tmp_path, make, store) -> None:
    store(tmp_path, make("x", source=Source.ANALYTIC))
    assert "Systems side by side" not in Cells(render(read_store(tmp_path))).tables
    store(tmp_path, make("y"))
    assert "Systems side by side" in Cells(render(read_store(tmp_path))).tables


def test_both_sides_of_an_expectation_lead_to_their_runs(tmp_path, make, store) -> None:
    rows = [
        {"what": "quicker", "kind": "ratio", "system": "b", "versus": ["c", "d"], "at_most": 1.0},
        {"what": "gone", "kind": "ratio", "system": "b", "versus": "e", "at_most": 1.0},
    ]
    for label, seconds in (("b", 1.0), ("c", 3.0), ("d", 2.0)):
        store(tmp_path, make(label, (seconds,), config={"experiment": {"expect": rows}}))
    cells = Cells(render(read_store(tmp_path)))
    compared = [row[1] for row in cells.rows("Expectations and results")]
    assert compared == [
        "b / d, the quickest of 2 | ratio of median batch times",
        "b / e | ratio of median batch times",
    ]
    assert cells.links["Expectations and results"][1:] == [["#e1-r1", "#e1-r3"], ["#e1-r1"]]


def test_the_contents_count_what_was_met_and_claimed(answered) -> None:
    folder, judgements = answered
    assert "claims: 1 reproduced, measured, 1 trend only, measured, 1 not run</small>" in render(
        read_store(folder), judged=judgements
    )


def test_value_of_an_omitted_run_keeps_its_command(tmp_path: Path) -> None:
    judgement = judged(claim(), Verdict.REPRODUCED, ours=((1.5,),), record="records/x.json", command="suite claims")
    (row,) = Cells(render(read_store(tmp_path), judged=[judgement])).rows("Every claim")
    assert row[5] == "1.5"
    assert row[10] == "the reason | details suite claims"


def test_a_contradiction_names_its_claims(answered) -> None:
    folder, judgements = answered
    cells = Cells(render(read_store(folder), judged=judgements, decisions=DECISIONS))
    label = "Contradictions in the papers, and the decisions"
    assert cells.rows(label) == [
        [
            "A1 | B",
            "AxoNN, SAMO | Section V against Table I",
            "two numbers for one thing",
            "the table",
            "demo.speedup",
        ]
    ]
    assert cells.links[label][1] == ["#claim-demo.speedup"]  # a claim that is not there is no link


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.0, "4"),
        (124439808.0, "124\u202f439\u202f808"),
        (5e10, "5e10"),
        (-0.0123456789, "-0.0123457"),
        (1e-12, "1e-12"),
        (float("inf"), "∞"),
        (float("nan"), "–"),
    ],
)
def test_numbers_as_the_papers_print_them(value: float, text: str) -> None:
    assert plain(value) == text


def test_our_numbers_keep_counts_and_four_digits() -> None:
    assert [short(value) for value in (1.23456, 124439808.0, 0.5, float("-inf"))] == [
        "1.235",
        "124\u202f439\u202f808",
        "0.5",
        "−∞",
    ]


@pytest.mark.parametrize(
    ("value", "text", "key"),
    [
        ((49.4, 54.78), "49.4 … 54.78", 49.4),
        ((float("-inf"), 3.0), "≤ 3", 3.0),
        ((13.0, float("inf")), "≥ 13", 13.0),
        ("independent of G_inter", "independent of G_inter", None),
    ],
)
def test_a_range_sorts_by_its_finite_end(value: Any, text: str, key: float | None) -> None:
    cell = published(claim(value=value))
    assert (cell.text, cell.value) == (text, key)


def test_a_long_setting_is_cut_between_its_parts() -> None:
    crowded = claim(setting={"model": "m" * 30, "gpus": 48, "machine": "s" * 40})
    assert setting(crowded) == "model " + "m" * 30 + ", gpus 48, …"
    assert len(setting(claim(setting={"model": "m" * 500}))) < 80


def test_places_to_break_stand_inside_names_alone() -> None:
    assert breakable("a_b.c 1.5 <i>_</i>") == "a_<wbr>b.<wbr>c 1.5 &lt;i&gt;_&lt;/i&gt;"


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' autofocus onfocus=alert(3) x='",
    "</td></tr></table></style><script>alert(4)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(5)",
    "../../../../etc/passwd",
    "\u202e\u2066evil\u2069 \x00",
)


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_claims_are_text_and_write_inside_alone(tmp_path, make, store, monkeypatch, evil) -> None:
    folder = tmp_path / "a" / "reports"
    row = AnswerRow(Evidence.MEASURED, figure="f", function="g", stand_in=evil, identity=True, turned_by=(evil,))
    bad = claim(
        evil, **dict.fromkeys(("paper", "where", "quantity", "system", "versus", "unit", "kind", "reach"), evil),
        value=evil, setting={evil: evil}, terms=(evil, evil + "2"), check=Check.EQUAL,
        answers=(row, AnswerRow(Evidence.DERIVED, experiment=evil, labels=(evil,), metric=evil)),
        cases=Cases.SOME, hedge=evil,
    )  # fmt: skip
    decision = Decision(evil, evil, evil, evil, evil, evil, claims=(evil, evil + "3"))
    monkeypatch.setattr(claims, "load", lambda: (bad, claim(evil + "4", paper=evil)))
    monkeypatch.setattr(claims, "decisions", lambda: (decision,))
    answer = make(
        "x", label=evil, metrics={evil: Metric(evil, "", (1.0, 1.0, 2.0, 3.0))}, config={evil: {evil: [evil]}}
    )
    store(folder, answer, "a\"onclick=alert(6) x='.json")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("index.html", "records.csv", "claims.csv"):  # a link in a file's place is replaced, not followed
        (folder / name).symlink_to(outside)
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    page = write_report(folder).read_text(encoding="utf-8")
    cells = Cells(page)

    row = cells.rows("Every claim")[0]
    cleaned = " ".join(evil.split())
    for text, cell in zip((cleaned, cleaned, cleaned, cleaned, cleaned), row, strict=False):
        assert text in cell
    assert "✓ reproduced" in row
    assert row[8] == " ".join(f"as published | {evil}".split())
    assert " ".join(f"in 1 of 2 cases (the paper says {evil})".split()) in row[10]
    assert re.findall(r"<script|<img|<td onfocus", page) == ["<script"]
    for links in cells.links.values():
        assert all(link.startswith(("./records/", "#")) for row in links for link in row)
    targets = {link[1:] for links in cells.links.values() for row in links for link in row if link.startswith("#")}
    assert targets <= set(cells.ids)
    assert len(set(cells.ids)) == len(cells.ids)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in cells.ids)
    with (folder / "claims.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"].split() for row in rows] == [evil.split(), (evil + "4").split()]
    assert rows[0]["verdict"] == "reproduced"
    assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before
    assert outside.read_text() == "mine"
    assert not [path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".json", ".csv", ".html"}]


def test_two_hostile_ids_have_two_anchors() -> None:
    assert len({anchor(name) for name in ("a b", "a/b", "a_b", "a\u202eb", "-a b")}) == 5


def test_a_deep_config_costs_no_page(tmp_path, make, store) -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    many = {f"k{number}": number for number in range(100_000)}
    store(tmp_path, make("deep", config={"top": deep}))
    store(tmp_path, make("many", config=many))
    store(tmp_path, make("long", config={"long": "y" * 100_000}))
    page = render(read_store(tmp_path))
    assert "\ntop.a.a.a.a.a.a.a={&#34;a&#34;" in page.replace("<code>", "\n")
    assert page.count("the rest is in the record") == 2
    assert len(page) < 200_000
    assert page.count("\n") < 5_000
