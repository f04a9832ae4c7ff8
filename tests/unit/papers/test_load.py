"""Claim files: every published value, and refusal of malformed rows.

A row that slips through would be judged by the wrong predicate, or by none.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.core.claim import AnswerRow, Cases, Check, Claim, Evidence, Scope
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.expression import evaluate
from suite.papers.common import claims
from tests.support.refusals import refused

ALL = claims.load()

ROW: dict[str, Any] = {
    "id": "axonn.x",
    "where": "Table I",
    "asserts": "A batch takes 34 seconds.",
    "role": "measurement",
    "passage": {"words": 3, "sha256": 64 * "a"},
    "quantity": "batch_time",
    "system": "axonn",
    "versus": None,
    "setting": {"gpus": 48},
    "value": 34,
    "unit": "second",
    "kind": "number",
    "reach": "cluster",
    "note": "",
    "check": "number",
}
POINTS = [{"phi": 1.0, "f": 0.1}, {"phi": 20.0, "f": 0.5}, {"phi": 3.0e8, "f": 0.25}]
FORMULA = {"value": "2*f*phi", "kind": "formula", "check": "formula", "expression": "2*f*phi", "points": POINTS}
ORDER = {"value": "a < b", "kind": "ordering", "check": "rises", "terms": ["a", "b"]}
ENDS = {"value": [10, 47], "kind": "range", "check": "ends", "terms": ["least", "largest"]}


FORMED = {"figure": "axonn_fig6", "function": "suite.papers.axonn.figures.total_memory"}
COMPARED = {"experiment": "overhead", "metric": "batch_time", "labels": ["axonn 2x1"]}


def answers(*rows: Any, **changes: Any) -> dict[str, Any]:
    """A change to a row: its answers, of which `changes` makes one more, by a function."""
    return {"answers": [*rows, *([{"evidence": "derived"} | FORMED | changes] if changes else [])]}


def read(**changes: Any) -> Claim:
    return claims.parse_claim({key: value for key, value in (ROW | changes).items() if value is not ...}, "axonn")


# The files


def test_every_published_value_is_there() -> None:
    counts = {"axonn": 138, "samo": 145, "pipeoptim": 192, "sparse_gnn": 107, "schedules": 186}
    assert Counter(claim.paper for claim in ALL) == counts
    assert len({claim.id for claim in ALL}) == sum(counts.values())
    assert all(claim.id.startswith(f"{claim.paper}.") for claim in ALL)


def test_the_analytic_rows_are_there() -> None:
    analytic = Counter(claim.paper for claim in ALL if claim.reach == "analytic")
    assert (analytic["axonn"], analytic["samo"]) == (29, 34)


def test_every_row_has_a_check_and_every_answer_evidence() -> None:
    for paper in claims.PAPERS:
        for row in yaml.safe_load((claims.FOLDER / paper / "claims.yaml").read_text()):
            assert row["check"] in list(Check), row["id"]
            assert all(answer["evidence"] in list(Evidence) for answer in row.get("answers", [])), row["id"]


def test_a_printed_number_has_no_stand_in() -> None:
    odd = [
        claim.id
        for claim in ALL
        for row in claim.answers
        if row.evidence is Evidence.PRINTED and (row.stand_in or row.identity)
    ]
    assert not odd


def test_a_control_is_another_claim() -> None:
    ids = {claim.id for claim in ALL}
    assert not [claim.id for claim in ALL if claim.control and claim.control not in ids - {claim.id}]


def test_no_tolerance_reaches_across_the_neutral_point() -> None:
    """A loss would count as a reproduced gain."""
    across = [
        claim.id
        for claim in ALL
        if claim.neutral is not None
        and isinstance(claim.value, float)
        and abs(claim.value - claim.neutral) < claim.slack
    ]
    assert not across


def test_a_formula_gives_several_values() -> None:
    """Code that returns one number whatever it is given would pass otherwise."""
    flat = [
        claim.id
        for claim in ALL
        if claim.points and len({evaluate(claim.expression, point) for point in claim.points}) < 2
    ]
    assert not flat


def test_every_tie_and_wide_tolerance_has_its_reason() -> None:
    assert all(c.because for c in ALL if c.tolerance is not None or c.check is Check.NEVER_FALLS)


def test_the_decisions_list_the_rows_that_name_them() -> None:
    decisions = {row.id: row for row in claims.decisions()}
    assert Counter(name[0] for name in decisions) == {"X": 3, "A": 12, "S": 16, "P": 15, "G": 17, "Z": 6}
    ids = {claim.id for claim in ALL}
    assert not [name for name, row in decisions.items() if not ids.issuperset(row.claims)]
    decision_claims = {(name, claim.id) for claim in ALL for name in re.findall(r"\b[XASPGZ]\d+\b", claim.because)}
    assert len(decision_claims) > 100
    assert not [(name, claim) for name, claim in sorted(decision_claims) if claim not in decisions[name].claims]


def test_the_settings_are_there() -> None:
    settings = claims.settings()
    assert list(settings) == ["systems", "models", "machines", "software", "datasets", "training", "formulas"]
    assert {"transformer_12b", "gpt3_13b", "gcn"} <= {row["id"] for row in settings["models"]}
    assert {row["id"]: row for row in settings["machines"]}["summit"]["gpus_per_node"] == 6


# Fields of a row


def test_a_row_becomes_a_claim() -> None:
    loaded = read(
        value=[13, math.inf],
        kind="range",
        check="range",
        terms=["12b", "24b"],
        neutral=0,
        because="a floor",
        versus="deepspeed_3d",
        hedge="normally",
        cases="most",
        control="axonn.y",
        **answers(
            {"evidence": "measured"}
            | COMPARED
            | {"labels": ["axonn 2x1", 4], "stand_in": "a laptop", "identity": True},
            arguments={"when": "before", "of": ["a", "b"]},
            anchors={"first": 18.9, "highest": [54.78, 42]},
            stand_in="a smaller graph",
            restates="Equation 1",
        ),
    )
    assert (loaded.value, loaded.neutral, loaded.terms) == ((13.0, math.inf), 0.0, ("12b", "24b"))
    assert (loaded.check, loaded.paper, loaded.versus) == (Check.RANGE, "axonn", "deepspeed_3d")
    assert (loaded.cases, loaded.hedge, loaded.control) == (Cases.MOST, "normally", "axonn.y")
    labels = ("axonn 2x1", "4")
    assert loaded.answers == (
        AnswerRow(
            Evidence.MEASURED,
            experiment="overhead",
            metric="batch_time",
            labels=labels,
            stand_in="a laptop",
            identity=True,
        ),
        AnswerRow(
            Evidence.DERIVED,
            **FORMED,
            arguments={"when": "before", "of": ["a", "b"]},
            anchors={"first": 18.9, "highest": (54.78, 42)},
            stand_in="a smaller graph",
            restates="Equation 1",
        ),
    )
    assert loaded.setting == {"gpus": 48}


def test_row_defaults_are_no_answer_and_all_cases() -> None:
    loaded = read()
    assert (loaded.answers, loaded.cases, loaded.control) == ((), Cases.ALL, "")


@pytest.mark.parametrize(
    ("row", "scope"),
    [
        ({}, Scope.AS_PUBLISHED),
        ({"stand_in": "a laptop"}, Scope.STAND_IN),
        ({"stand_in": "a laptop", "identity": True}, Scope.AS_PUBLISHED),
    ],
)
def test_an_answer_on_a_stand_in_is_not_as_published(row: dict[str, Any], scope: Scope) -> None:
    """Unless it holds for any input."""
    assert read(**answers({"evidence": "derived"} | FORMED | row)).answers[0].scope is scope


def test_tables_and_figures_of_a_claim_come_from_its_place() -> None:
    assert read(where="Table II, row 12 AxoNN; Figure 6").displays == {"axonn Table II", "axonn Figure 6"}
    assert read(where="Section VI-B (Figures 6 and 7)").displays == {"axonn Figure 6", "axonn Figure 7"}
    assert read(where="Figure 1(d)").displays == read(where="Figure 1(e)").displays
    assert read(where="Section VI-B, paragraph 2").displays == set()


def test_a_claim_may_be_about_no_one_system() -> None:
    loaded = read(system=None)
    assert (loaded.system, loaded.versus, loaded.tolerance, loaded.because) == ("", None, None, "")


def test_formula_accepts_symbols_that_it_does_not_read() -> None:
    points = [{"gpus": 4, "g_inter": 2}, {"gpus": 6, "g_inter": 2}, {"gpus": 6, "g_inter": 3}]
    assert len(read(**FORMULA | {"expression": "1 / gpus", "points": points}).points) == 3


# Refusals


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"colour": 1}, UnknownName, "field of claim axonn.x named 'colour'"),
        ({"chek": "number"}, UnknownName, "did you mean 'check'"),
        ({"paper": "samo"}, UnknownName, "'paper'"),
        ({"check": ...}, InvalidRequest, "axonn.x lacks check"),
        *[({key: "x"}, UnknownName, f"named '{key}'") for key in ("scope", "evidence", "answer")],
        ({"value": None}, InvalidRequest, "lacks value"),
        ({"check": "numbr"}, UnknownName, "did you mean 'number'"),
        ({"cases": "few"}, UnknownName, "cases of claim axonn.x named 'few'"),
        ({"kind": "count"}, UnknownName, "kind of claim axonn.x named 'count'"),
        ({"reach": "moon"}, UnknownName, "reach of claim axonn.x named 'moon'"),
        ({"unit": 3}, InvalidRequest, "unit of claim axonn.x is 3; rule: text"),
        ({"because": ["x"]}, InvalidRequest, "because of claim axonn.x"),
        ({"setting": "gpus"}, InvalidRequest, "setting of claim axonn.x"),
        ({"value": True}, InvalidRequest, "value of claim axonn.x is True"),
        ({"value": math.nan}, InvalidRequest, "value of claim axonn.x is nan"),
        ({"value": "3e11"}, InvalidRequest, "'3e11' of 0 terms"),
        # pairs
        *[
            ({"value": pair, "kind": "range", "check": "range"}, InvalidRequest, "a pair, low first")
            for pair in ([1], [1, 2, 3], [2, 1], [1, "2"], [True, 2], [], [math.nan, 1])
        ],
        ({"check": "range"}, InvalidRequest, "check range: a pair"),
        ({"value": [1, 2]}, InvalidRequest, "check number: a number"),
        ({"value": [1, 2], "check": "rises", "terms": ["a", "b"]}, InvalidRequest, "a pair has check range or ends"),
        (ENDS | {"value": 10.0}, InvalidRequest, "check ends: a finite pair"),
        (ENDS | {"value": [10, math.inf]}, InvalidRequest, "check ends: a finite pair"),
        (ENDS | {"terms": ["a"]}, InvalidRequest, "check ends: one term per end"),
        (ENDS | {"terms": ["a", "b", "c"]}, InvalidRequest, "check ends: one term per end"),
        (ENDS | {"neutral": 0}, InvalidRequest, "for the checks number and range"),
        # terms
        ({"terms": ["a", "b"]}, InvalidRequest, "34.0 of 2 terms"),
        (ORDER | {"terms": []}, InvalidRequest, "check rises: at least 2 terms"),
        (ORDER | {"check": "equal", "terms": ["a"]}, InvalidRequest, "check equal: at least 2 terms"),
        (ORDER | {"terms": ["a", "a"]}, InvalidRequest, "each term once"),
        (ORDER | {"terms": [6, 12]}, InvalidRequest, "numbers in quotes"),
        (ORDER | {"terms": "ab"}, InvalidRequest, "a list of names"),
        # reasons
        ({"tolerance": 0.1}, InvalidRequest, "a tolerance has its reason in `because`"),
        ({"tolerance": -0.1, "because": "x"}, InvalidRequest, "relative, 0 to 1"),
        ({"tolerance": 8, "because": "percent"}, InvalidRequest, "relative, 0 to 1"),
        ({"tolerance": "0.1", "because": "x"}, InvalidRequest, "tolerance of claim axonn.x is '0.1'"),
        *[({"cases": word}, InvalidRequest, "fewer than all only with a hedge") for word in ("most", "some")],
        ({"hedge": 3}, InvalidRequest, "hedge of claim axonn.x is 3; rule: text"),
        ({"control": ["axonn.y"]}, InvalidRequest, "control of claim axonn.x"),
        (ORDER | {"tolerance": 0.1, "because": "x"}, InvalidRequest, "check rises has no tolerance"),
        (
            {"value": [1, 2], "check": "range", "tolerance": 0.1, "because": "x"},
            InvalidRequest,
            "check range has no tolerance",
        ),
        ({"neutral": math.inf}, InvalidRequest, "neutral of claim axonn.x is inf"),
        (ORDER | {"neutral": 0}, InvalidRequest, "for the checks number and range"),
        # formulas
        (FORMULA | {"points": POINTS[:2]}, InvalidRequest, "2 points; rule: at least 3"),
        (FORMULA | {"points": [POINTS[0]] * 3}, InvalidRequest, "no two equal"),
        (FORMULA | {"points": [{"phi": 1.0}, *POINTS[1:]]}, InvalidRequest, "axonn.x: .*has no value for f"),
        (FORMULA | {"points": [{"phi": "1e3", "f": 1}, *POINTS[1:]]}, InvalidRequest, "phi of claim axonn.x is '1e3'"),
        (FORMULA | {"points": {"phi": 1}}, InvalidRequest, "a list of mappings"),
        (FORMULA | {"points": [{"phi": None, "f": 1}, *POINTS[1:]]}, InvalidRequest, "a number for every symbol"),
        (FORMULA | {"expression": "2*f*phi +"}, InvalidRequest, "axonn.x: .*does not parse"),
        (FORMULA | {"expression": "2 f phi"}, InvalidRequest, "axonn.x: .*does not parse"),
        (FORMULA | {"expression": "exec(f)"}, InvalidRequest, "axonn.x: .*exec"),
        (FORMULA | {"expression": "phi / (f - 0.5)"}, InvalidRequest, "axonn.x: .*finite number at every point"),
        (FORMULA | {"terms": ["a", "b"]}, InvalidRequest, "one term per point"),
        ({"expression": "2*phi"}, InvalidRequest, "only with check formula"),
        ({"points": POINTS}, InvalidRequest, "only with check formula"),
        ({"asserts": ...}, InvalidRequest, "lacks asserts"),
        ({"role": "guess"}, UnknownName, "role of claim axonn.x"),
        ({"printed": [34]}, InvalidRequest, "printed numbers of claim axonn.x"),
        ({"passage": {"words": 3}}, InvalidRequest, "passage of claim axonn.x"),
        ({"passage": {"words": 0, "sha256": 64 * "a"}}, InvalidRequest, "passage of claim axonn.x"),
        ({"passage": {"words": 3, "sha256": "xyz"}}, InvalidRequest, "passage of claim axonn.x"),
        ({"passage": "three words"}, InvalidRequest, "passage of claim axonn.x"),
        # answers
        ({"answers": "overhead"}, InvalidRequest, "answers of claim axonn.x"),
        ({"answers": {"evidence": "derived"} | FORMED}, InvalidRequest, "a list of mappings"),
        (answers("overhead"), InvalidRequest, "a list of mappings"),
        (answers(FORMED), UnknownName, "evidence of the answer of claim axonn.x"),
        (answers(evidence="guessed"), UnknownName, "evidence of the answer of claim axonn.x named 'guessed'"),
        (answers(evidence="printd"), UnknownName, "did you mean 'printed'"),
        (answers({"evidence": "derived"}), InvalidRequest, "answer of claim axonn.x"),
        (answers({"evidence": "derived", "figure": "axonn_fig6"}), InvalidRequest, "answer of claim axonn.x"),
        (answers(scope="stand-in"), InvalidRequest, "answer of claim axonn.x"),
        *[(answers(**{key: ""}), InvalidRequest, "answer of claim axonn.x") for key in ("stand_in", "restates")],
        (answers(restates=True), InvalidRequest, "answer of claim axonn.x"),
        (answers(identity="yes"), InvalidRequest, "answer of claim axonn.x"),
        (answers(identity=1), InvalidRequest, "answer of claim axonn.x"),
        (answers(function="os.system"), InvalidRequest, "a function of suite.papers"),
        (answers(arguments=["a"]), InvalidRequest, "arguments of the answer"),
        (answers(anchors=[18.9]), InvalidRequest, "anchors of the answer"),
        (answers(anchors={"first": "18.9"}), InvalidRequest, "rule: numbers by name; legal: {first: 18.9}"),
        (
            answers({"evidence": "measured"} | COMPARED | {"anchors": {"first": 18.9}}),
            InvalidRequest,
            "answer of claim axonn.x",
        ),
        (answers(experiment="e"), InvalidRequest, "answer of claim axonn.x"),
        *[
            (answers({"evidence": "measured"} | COMPARED | changes), InvalidRequest, "answer of claim axonn.x")
            for changes in ({"series": "s"}, {"labels": "a"}, {"labels": ["a", "b"]}, {"labels": []}, {"x": 1})
        ],
        (
            answers({"evidence": "measured", "experiment": "e", "metric": "m"}),
            InvalidRequest,
            "answer of claim axonn.x",
        ),
        (
            answers({"evidence": "derived"} | FORMED, function="suite.papers.axonn.figures.other"),
            InvalidRequest,
            "claim axonn.x has two answers with the same evidence",
        ),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused_by_name(
    changes: dict[str, Any], error: type[InvalidRequest], words: str
) -> None:
    with pytest.raises(error, match=words) as refusal:
        read(**changes)
    assert "axonn.x" in str(refusal.value)


def test_a_reason_allows_another_tolerance() -> None:
    assert read(tolerance=0, because="a count that needs no cluster").tolerance == 0.0


@pytest.mark.parametrize("words", [{"hedge": "normally"}, {"because": "the text is about most graphs"}])
def test_a_hedge_or_a_reason_allows_fewer_cases(words: dict[str, str]) -> None:
    assert read(cases="most", **words).cases is Cases.MOST
    assert read(cases="some", **words).cases is Cases.SOME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in claims.FOLDER.glob("*/*.yaml"):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.parent.name)
    return tmp_path


def test_an_id_stands_once(folder: Path) -> None:
    rows = (folder / "samo/claims.yaml").read_text()
    (folder / "samo/claims.yaml").write_text(rows + "\n" + yaml.safe_dump([ROW | {"id": "axonn.fig10.loss_curves"}]))
    with refused(InvalidRequest, subject="two claims have the id axonn.fig10.loss_curves", rule="one row per id"):
        claims.load(folder)


@pytest.mark.parametrize("text", ["- [", "a: 1", "- 3", "", "!!python/object/apply:builtins.list [[]]"])
def test_a_file_that_is_no_list_of_rows_is_refused(folder: Path, text: str) -> None:
    (folder / "pipeoptim/claims.yaml").write_text(text)
    with refused(InvalidRequest, subject="pipeoptim/claims.yaml"):
        claims.load(folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "axonn/claims.yaml").unlink()
    with refused(InvalidRequest, subject="axonn/claims.yaml cannot be read"):
        claims.load(folder)


@pytest.mark.parametrize(
    "row", [{"id": "A1"}, {"id": "A1", "weight": "", "paper": "p", "where": "w", "finding": "f", "decision": "d"}]
)
def test_a_decision_is_whole(folder: Path, row: dict[str, str]) -> None:
    (folder / "common/decisions.yaml").write_text(yaml.safe_dump([row], sort_keys=False))
    with refused(InvalidRequest, subject="decision A1", rule="text for id, weight, paper, where, finding, decision"):
        claims.decisions(folder)


def test_the_settings_are_lists_by_group(folder: Path) -> None:
    (folder / "common/settings.yaml").write_text("systems: 3")
    with refused(InvalidRequest, rule="groups of rows"):
        claims.settings(folder)
