"""Each contradiction in the papers has a decision and existing claims.

A decision that names a claim by a wrong id, or a claim that refers to a decision which does not list it, would leave a
reader of the page without the reason for a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.core.claim import Decision
from suite.core.errors import InvalidRequest
from suite.papers.common import claims
from tests.support.refusals import refused

# X: between papers; A, S, P, G, Z: within one. So many of each were found
PAPERS = {"X": None, "A": "axonn", "S": "samo", "P": "pipeoptim", "G": "sparse_gnn", "Z": "schedules"}
FOUND = {"X": 3, "A": 12, "S": 16, "P": 15, "G": 17, "Z": 6}
NAMED = re.compile(r"\b[XASPGZ]\d{1,2}\b")

DECISIONS = {row.id: row for row in claims.decisions()}
CLAIMS = {claim.id: claim for claim in claims.load()}

every_decision = pytest.mark.parametrize("row", claims.decisions(), ids=lambda row: row.id)


def test_every_contradiction_has_one_decision() -> None:
    expected = [f"{letter}{number + 1}" for letter, count in FOUND.items() for number in range(count)]
    assert len(expected) == 69
    assert [row.id for row in claims.decisions()] == expected


@every_decision
def test_a_decision_says_where_what_and_how(row: Decision) -> None:
    for name in ("where", "finding", "decision"):
        assert getattr(row, name).strip()
        assert "\n" not in getattr(row, name)
    assert len(row.finding) > 20
    assert row.weight in {"A", "B", "C", "-"}
    paper = PAPERS[row.id[0]]
    papers = row.paper.split(", ")
    assert set(papers) <= set(claims.PAPERS)
    assert papers == [paper] if paper else len(papers) > 1


def test_only_what_turned_out_consistent_has_no_weight() -> None:
    assert [name for name, row in DECISIONS.items() if row.weight == "-"] == ["S16"]


@every_decision
def test_the_claims_of_a_decision_are_claims_of_its_papers(row: Decision) -> None:
    names = row.claims
    assert len(set(names)) == len(names)
    for name in names:
        assert name in CLAIMS, name
        assert CLAIMS[name].paper in row.paper.split(", ")
    # what changes what counts as reproduced bears on a row; a slip in the text alone may bear on none
    assert names or row.weight == "C"


def test_a_claim_that_names_a_decision_is_listed_there() -> None:
    decisions = [(name, claim.id) for claim in CLAIMS.values() for name in NAMED.findall(claim.because)]
    assert len({name for name, _ in decisions}) > 40
    assert [pair for pair in decisions if pair[0] not in DECISIONS or pair[1] not in DECISIONS[pair[0]].claims] == []


@pytest.mark.parametrize(
    "change",
    [{"finding": ""}, {"weight": 1}, {"claims": ["a.b", 2]}, {"claims": ["a.b"], "why": "no such field"}],
    ids=str,
)
def test_a_file_with_a_broken_decision_is_refused(tmp_path: Path, change: Mapping[str, Any]) -> None:
    row = {**asdict(DECISIONS["A1"]), "claims": list(DECISIONS["A1"].claims)}
    (tmp_path / "common").mkdir()
    (tmp_path / "common/decisions.yaml").write_text(yaml.safe_dump([row], sort_keys=False), encoding="utf-8")
    assert claims.decisions(tmp_path) == (DECISIONS["A1"],)
    (tmp_path / "common/decisions.yaml").write_text(
        yaml.safe_dump([{**row, **change}], sort_keys=False), encoding="utf-8"
    )
    with refused(InvalidRequest, subject="A1"):
        claims.decisions(tmp_path)


def test_settings_hold_every_system_and_model_of_claims() -> None:
    settings = claims.settings()
    systems = {row["id"] for row in settings["systems"]}
    models = {row["id"] for row in settings["models"]}
    assert {
        (claim.id, name)
        for claim in CLAIMS.values()
        for name in (claim.system or "").split(", ")
        if name and name not in systems
    } == set()
    assert {
        (claim.id, name) for claim in CLAIMS.values() if (name := claim.setting.get("model")) and name not in models
    } == set()


def test_no_setting_stands_twice() -> None:
    for group, rows in claims.settings().items():
        names = [str(row["id"]) if "id" in row else f"{row['paper']} {row.get('experiment')}" for row in rows]
        assert sorted(names) == sorted(set(names)), group
