"""The table of docs/verdicts.md, compared with the current judgement of the same claims.

Answers by functions are computed here; what was trained for long is read from committed records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from suite.claims.claim import Judged, Verdict
from suite.claims.verdicts_now import judge_with_records
from suite.report.load import read_store
from tests.support.drawn import drawn
from tests.support.published_runs import published

ROOT = Path(__file__).resolve().parents[3]
HEAD = ["claim", "assertion of the paper", "evidence", "scope", "rule", "verdict", "why"]
LONG = {"axonn_table2", "axonn_fig9", "axonn_fig6"}  # figures whose simulation takes more than ten seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; evidence is empty where nothing was run."""

    claim: str
    asserts: str
    evidence: str
    scope: str
    rule: int
    verdict: Verdict
    why: str


def table() -> Iterator[Row]:
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("applied by hand")[2]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == HEAD
    for name, asserts, evidence, scope, rule, verdict, why in cells[2:]:
        stated = "" if evidence == "none" else evidence
        yield Row(name.strip("`"), asserts, stated, scope, int(rule), Verdict(verdict), why)


ROWS = {row.claim: row for row in table()}


def is_long(name: str) -> bool:
    return any(answer.figure in LONG for answer in published()[name].answers)


@pytest.mark.parametrize("name", drawn([name for name in ROWS if not is_long(name)], n=3))
def test_verdict_by_hand_is_the_judges(name: str) -> None:
    """The row equals the judge's verdict, with the control of the claim."""
    claim, row = published()[name], ROWS[name]
    answered = [name] if any(each.function for each in claim.answers) else []
    judged: Judged = judge_with_records(answered, read_store(ROOT / "reports").entries)[name]
    evidence = judged.evidence.value if judged.evidence else ""
    assert (evidence, judged.scope, judged.verdict) == (row.evidence, row.scope, row.verdict), judged.why


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in ROWS if is_long(name)])
def test_verdict_by_hand_of_a_long_simulation_is_the_judges(name: str) -> None:
    test_verdict_by_hand_is_the_judges(name)


def test_table_has_every_verdict_evidence_and_paper() -> None:
    assert len(ROWS) == 28
    assert {row.verdict for row in ROWS.values()} == set(Verdict)
    kinds = {answer.evidence.value for claim in published().values() for answer in claim.answers}
    assert {row.evidence for row in ROWS.values()} == kinds | {""}
    assert {published()[name].paper for name in ROWS} == {claim.paper for claim in published().values()}
