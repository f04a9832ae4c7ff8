"""Plain answers: every verdict has one, the documents state the same table, and the front page names real claims."""

from __future__ import annotations

import re

from suite.claims import load
from suite.claims.claim import Evidence, Judged, Verdict
from suite.claims.plain_answers import in_words, plain_answer
from suite.core.resources import ROOT
from suite.report.panels.published_figures import figures_in


def test_documents_state_the_answer_of_every_verdict() -> None:
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("## Plain answers")[2]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("## Rules")[0], re.MULTILINE))
    expected = {"verdict": "plain answer"}
    for verdict in Verdict:
        kinds = (Evidence.MEASURED, Evidence.DERIVED) if verdict is Verdict.REPRODUCED else (None,)
        for kind in kinds:
            name = f"{verdict}, {kind}" if kind else verdict.value
            expected[name] = plain_answer(verdict, kind).value
    assert rows == expected


def test_answers_are_counted_by_evidence() -> None:
    claim = load.claims()[0]
    found = [(Verdict.REPRODUCED, Evidence.MEASURED), (Verdict.REPRODUCED, Evidence.DERIVED), (Verdict.NOT_RUN, None)]
    items = [Judged(claim, verdict, "", evidence) for verdict, evidence in [*found, found[0]]]
    assert in_words(items) == "Claims: holds (measured) 2, holds (derived) 1, open 1."
    assert not in_words([])


def test_front_page_names_claims_and_a_figure_of_each_paper() -> None:
    known = {claim.id: claim for claim in load.claims()}
    fronts = load.fronts()
    assert fronts.keys() == set(load.papers())
    for paper, front in fronts.items():
        assert 3 <= len(front.claims) <= 5
        assert {known[name].paper for name in front.claims} == {paper}
        assert figures_in(front.picture) == {front.picture}
