"""Decides whether the claim files hold every published value, and whether a row that breaks a rule is refused by name.

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

from suite import claims
from suite.core.claim import Check, Claim, Scope
from suite.core.errors import Refused, UnknownName
from suite.core.expression import evaluate

ALL = claims.load()

ROW: dict[str, Any] = {
    "id": "axonn.x",
    "where": "Table I",
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
    "scope": "simulated",
}
POINTS = [{"phi": 1.0, "f": 0.1}, {"phi": 20.0, "f": 0.5}, {"phi": 3.0e8, "f": 0.25}]
FORMULA = {"value": "2*f*phi", "kind": "formula", "check": "formula", "expression": "2*f*phi", "points": POINTS}
ORDER = {"value": "a < b", "kind": "ordering", "check": "rises", "terms": ["a", "b"]}


def read(**changes: Any) -> Claim:
    return claims.claim({key: value for key, value in (ROW | changes).items() if value is not ...}, "axonn")


# The files


def test_every_published_value_is_there() -> None:
    assert Counter(claim.paper for claim in ALL) == {"axonn": 138, "samo": 145, "pipeoptim": 192, "sparse_gnn": 107}
    assert len({claim.id for claim in ALL}) == 582
    assert all(claim.id.startswith(f"{claim.paper}.") for claim in ALL)


def test_the_analytic_rows_are_there() -> None:
    analytic = Counter(claim.paper for claim in ALL if claim.reach == "analytic")
    assert (analytic["axonn"], analytic["samo"]) == (29, 34)


def test_every_row_says_how_it_is_checked_and_in_which_scope() -> None:
    for paper in claims.PAPERS:
        for row in yaml.safe_load((claims.FOLDER / f"{paper}.yaml").read_text()):
            assert row["check"] in list(Check), row["id"]
            assert row["scope"] in list(Scope), row["id"]


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
    decisions = {row["id"]: row for row in claims.decisions()}
    assert Counter(name[0] for name in decisions) == {"X": 3, "A": 12, "S": 16, "P": 15, "G": 17}
    known = {claim.id for claim in ALL}
    assert not [name for name, row in decisions.items() if not known.issuperset(row["claims"])]
    named = {(name, claim.id) for claim in ALL for name in re.findall(r"\b[XASPG]\d+\b", claim.because)}
    assert len(named) > 100
    assert not [(name, claim) for name, claim in sorted(named) if claim not in decisions[name]["claims"]]


def test_the_settings_are_there() -> None:
    settings = claims.settings()
    assert list(settings) == ["systems", "models", "machines", "software", "datasets", "training", "formulas"]
    assert {"transformer_12b", "gpt3_13b", "gcn"} <= {row["id"] for row in settings["models"]}
    assert {row["id"]: row for row in settings["machines"]}["summit"]["gpus_per_node"] == 6


# What a row becomes


def test_a_row_becomes_a_claim() -> None:
    found = read(
        value=[13, math.inf],
        kind="range",
        check="range",
        terms=["12b", "24b"],
        neutral=0,
        because="a floor",
        versus="deepspeed_3d",
        evidence={"experiment": "overhead", "metric": "batch_time", "labels": ["axonn 2x1", "gpipe 2x1"]},
    )
    assert (found.value, found.neutral, found.terms) == ((13.0, math.inf), 0.0, ("12b", "24b"))
    assert (found.check, found.scope, found.paper, found.versus) == (
        Check.RANGE,
        Scope.SIMULATED,
        "axonn",
        "deepspeed_3d",
    )
    assert found.evidence["labels"] == ["axonn 2x1", "gpipe 2x1"]
    assert found.setting == {"gpus": 48}


def test_a_claim_may_be_about_no_one_system() -> None:
    found = read(system=None)
    assert (found.system, found.versus, found.tolerance, found.because) == ("", None, None, "")


def test_a_formula_may_be_tried_at_symbols_that_it_does_not_read() -> None:
    points = [{"gpus": 4, "g_inter": 2}, {"gpus": 6, "g_inter": 2}, {"gpus": 6, "g_inter": 3}]
    assert len(read(**FORMULA | {"expression": "1 / gpus", "points": points}).points) == 3


# What is refused


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"colour": 1}, UnknownName, "field of claim axonn.x named 'colour'"),
        ({"chek": "number"}, UnknownName, "did you mean 'check'"),
        ({"paper": "samo"}, UnknownName, "'paper'"),
        ({"check": ...}, Refused, "axonn.x lacks check"),
        ({"scope": None}, Refused, "axonn.x lacks scope"),
        ({"value": None}, Refused, "lacks value"),
        ({"check": "numbr"}, UnknownName, "did you mean 'number'"),
        ({"scope": "standin"}, UnknownName, "did you mean 'stand-in'"),
        ({"kind": "count"}, UnknownName, "kind of claim axonn.x named 'count'"),
        ({"reach": "moon"}, UnknownName, "reach of claim axonn.x named 'moon'"),
        ({"unit": 3}, Refused, "unit of claim axonn.x is 3; rule: text"),
        ({"because": ["x"]}, Refused, "because of claim axonn.x"),
        ({"setting": "gpus"}, Refused, "setting of claim axonn.x"),
        ({"value": True}, Refused, "value of claim axonn.x is True"),
        ({"value": math.nan}, Refused, "value of claim axonn.x is nan"),
        ({"value": "3e11"}, Refused, "'3e11' of 0 terms"),
        # pairs
        *[
            ({"value": pair, "kind": "range", "check": "range"}, Refused, "a pair, low first")
            for pair in ([1], [1, 2, 3], [2, 1], [1, "2"], [True, 2], [], [math.nan, 1])
        ],
        ({"check": "range"}, Refused, "check range: a pair"),
        ({"value": [1, 2]}, Refused, "check number: a number"),
        ({"value": [1, 2], "check": "rises", "terms": ["a", "b"]}, Refused, "range, or because says why not"),
        # terms
        ({"terms": ["a", "b"]}, Refused, "34.0 of 2 terms"),
        (ORDER | {"terms": []}, Refused, "check rises: at least 2 terms"),
        (ORDER | {"check": "equal", "terms": ["a"]}, Refused, "check equal: at least 2 terms"),
        (ORDER | {"terms": ["a", "a"]}, Refused, "each term once"),
        (ORDER | {"terms": [6, 12]}, Refused, "numbers in quotes"),
        (ORDER | {"terms": "ab"}, Refused, "a list of names"),
        # reasons
        ({"tolerance": 0.1}, Refused, "a tolerance says why in because"),
        ({"tolerance": -0.1, "because": "x"}, Refused, "relative, 0 to 1"),
        ({"tolerance": 8, "because": "percent"}, Refused, "relative, 0 to 1"),
        ({"tolerance": "0.1", "because": "x"}, Refused, "tolerance of claim axonn.x is '0.1'"),
        ({"scope": "as published"}, Refused, "another scope than the usual says why in because; legal: simulated"),
        ({"reach": "gpu", "scope": "as published"}, Refused, "legal: stand-in"),
        ({"reach": "analytic", "scope": "stand-in"}, Refused, "legal: as published"),
        (ORDER | {"tolerance": 0.1, "because": "x"}, Refused, "check rises is not widened"),
        ({"value": [1, 2], "check": "range", "tolerance": 0.1, "because": "x"}, Refused, "check range is not widened"),
        ({"neutral": math.inf}, Refused, "neutral of claim axonn.x is inf"),
        (ORDER | {"neutral": 0}, Refused, "for the checks number and range"),
        # formulas
        (FORMULA | {"points": POINTS[:2]}, Refused, "2 points; rule: at least 3"),
        (FORMULA | {"points": [POINTS[0]] * 3}, Refused, "no two equal"),
        (FORMULA | {"points": [{"phi": 1.0}, *POINTS[1:]]}, Refused, "axonn.x: .*has no value for f"),
        (FORMULA | {"points": [{"phi": "1e3", "f": 1}, *POINTS[1:]]}, Refused, "phi of claim axonn.x is '1e3'"),
        (FORMULA | {"points": {"phi": 1}}, Refused, "a list of mappings"),
        (FORMULA | {"points": [{"phi": None, "f": 1}, *POINTS[1:]]}, Refused, "a number for every symbol"),
        (FORMULA | {"expression": "2*f*phi +"}, Refused, "axonn.x: .*does not parse"),
        (FORMULA | {"expression": "2 f phi"}, Refused, "axonn.x: .*does not parse"),
        (FORMULA | {"expression": "exec(f)"}, Refused, "axonn.x: .*exec"),
        (FORMULA | {"expression": "phi / (f - 0.5)"}, Refused, "axonn.x: .*finite number at every point"),
        (FORMULA | {"terms": ["a", "b"]}, Refused, "a term per point"),
        ({"expression": "2*phi"}, Refused, "for the check formula alone"),
        ({"points": POINTS}, Refused, "for the check formula alone"),
        # evidence
        *[
            ({"evidence": evidence}, Refused, "evidence of claim axonn.x")
            for evidence in (
                {"experiment": "e", "metric": "m"},
                {"experiment": "e", "metric": "m", "series": "s", "labels": ["a"]},
                {"experiment": "e", "metric": "m", "labels": "a"},
                {"experiment": "e", "metric": "m", "labels": ["a", "b"]},
                {"experiment": "e", "metric": "m", "labels": ["a"], "x": 1},
            )
        ],
        ({"evidence": "overhead"}, Refused, "evidence of claim axonn.x"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused_by_name(changes: dict[str, Any], error: type[Refused], words: str) -> None:
    with pytest.raises(error, match=words) as refusal:
        read(**changes)
    assert "axonn.x" in str(refusal.value)


def test_a_reason_allows_another_scope_and_another_tolerance() -> None:
    found = read(scope="as published", tolerance=0, because="a count that needs no cluster")
    assert (found.scope, found.tolerance) == (Scope.AS_PUBLISHED, 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in claims.FOLDER.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_an_id_stands_once(folder: Path) -> None:
    rows = (folder / "samo.yaml").read_text()
    (folder / "samo.yaml").write_text(rows + "\n" + yaml.safe_dump([ROW | {"id": "axonn.fig10.loss_curves"}]))
    with pytest.raises(Refused, match=r"two claims are named axonn\.fig10\.loss_curves"):
        claims.load(folder)


@pytest.mark.parametrize("text", ["- [", "a: 1", "- 3", "", "!!python/object/apply:builtins.list [[]]"])
def test_a_file_that_is_no_list_of_rows_is_refused(folder: Path, text: str) -> None:
    (folder / "pipeoptim.yaml").write_text(text)
    with pytest.raises(Refused, match=r"pipeoptim\.yaml"):
        claims.load(folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "axonn.yaml").unlink()
    with pytest.raises(Refused, match=r"axonn\.yaml cannot be read"):
        claims.load(folder)


@pytest.mark.parametrize(
    "row", [{"id": "A1"}, {"id": "A1", "weight": "", "paper": "p", "where": "w", "finding": "f", "decision": "d"}]
)
def test_a_decision_is_whole(folder: Path, row: dict[str, str]) -> None:
    (folder / "decisions.yaml").write_text(yaml.safe_dump([row], sort_keys=False))
    with pytest.raises(Refused, match="decision A1"):
        claims.decisions(folder)


def test_the_settings_are_lists_by_group(folder: Path) -> None:
    (folder / "settings.yaml").write_text("systems: 3")
    with pytest.raises(Refused, match="groups of rows"):
        claims.settings(folder)
