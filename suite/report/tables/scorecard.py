"""Counts of verdicts by paper, scope and evidence. Counts of different evidence are never added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from suite.claims import load
from suite.claims.claim import Evidence, Judged, Scope, Verdict

SIGNS = {
    Verdict.REPRODUCED: "✓",
    Verdict.MATCHED: "∼",
    Verdict.TREND_ONLY: "≈",
    Verdict.CONSISTENT: "=",
    Verdict.CALIBRATED: "◇",
    Verdict.CALIBRATED_MISSED: "◈",
    Verdict.FED: "◁",
    Verdict.NO_BETTER: "∅",
    Verdict.UNDECIDED: "?",
    Verdict.NOT_MATCHED: "≁",
    Verdict.DIFFERS_ON_STAND_IN: "≉",
    Verdict.DIFFERS: "≠",
    Verdict.CONTRADICTED: "✗",
    Verdict.NOT_RUN: "○",
}
_GROUPS = {"good": "✓", "trend": "∼≈", "fitted": "=◇◈◁∅", "faint": "?≁≉○", "bad": "≠✗"}
TONES = {verdict: tone for verdict, sign in SIGNS.items() for tone, signs in _GROUPS.items() if sign in signs}
NO_EVIDENCE = "none"
_BY_EVIDENCE = (Verdict.REPRODUCED, Verdict.TREND_ONLY, Verdict.DIFFERS)  # counted separately for each evidence
_OURS = (Evidence.MEASURED, Evidence.DERIVED)


class VerdictColumn(NamedTuple):
    """A column of the scorecard: a verdict, with its evidence where it is counted separately for each."""

    verdict: Verdict
    evidence: str

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]

    @property
    def tone(self) -> str:
        return TONES[self.verdict]


def column(verdict: str, evidence: str | None) -> str:
    """Name of the column that counts a claim: 'reproduced, measured', 'not run'."""
    return f"{verdict}, {evidence}" if verdict in _BY_EVIDENCE else str(verdict)


COLUMNS: Mapping[str, VerdictColumn] = {
    column(verdict, kind): VerdictColumn(verdict, kind)
    for verdict in Verdict
    for kind in (_OURS if verdict in _BY_EVIDENCE else ("",))
}


def paper(judged: Judged) -> str:
    """Name of the paper on the page."""
    return load.titles().get(judged.claim.paper, judged.claim.paper)


FIELDS: Mapping[str, tuple[Callable[[Judged], str], Sequence[str]]] = {  # of a claim, with the order of their values
    "paper": (paper, ()),
    "verdict": (lambda judged: judged.verdict.value, [each.value for each in Verdict]),
    "scope": (lambda judged: judged.scope.value, [each.value for each in Scope]),
    "evidence": (lambda judged: judged.evidence or NO_EVIDENCE, [*(each.value for each in Evidence), NO_EVIDENCE]),
}


def values(judged: Sequence[Judged], field: str) -> list[str]:
    """The values of a field that occur: those of its order, then the others as they come."""
    of, order = FIELDS[field]
    seen = dict.fromkeys(map(of, judged))
    return [*(value for value in order if value in seen), *(value for value in seen if value not in order)]


@dataclass(frozen=True, slots=True)
class Score:
    """A table of the scorecard: claims by one property and verdict.

    Attributes:
        title: Title of the table.
        field: Filter of the claims table for the property.
        counts: Number of claims; a row per value of the field, a column per verdict that occurs.
    """

    title: str
    field: str
    counts: pd.DataFrame


def scores(judged: Sequence[Judged]) -> list[Score]:
    """The scorecard's tables; none where there are no claims."""
    titles = {
        "paper": "By paper",
        "scope": "By scope: how our run relates to the published one",
        "evidence": "By evidence: how our value came about",
    }
    return [Score(title, field, _counts(judged, field)) for field, title in titles.items()] if judged else []


def _counts(judged: Sequence[Judged], field: str) -> pd.DataFrame:
    columns = [column(one.verdict, one.evidence) for one in judged]
    table = pd.crosstab(pd.Index([FIELDS[field][0](one) for one in judged]), pd.Index(columns))
    return table.loc[values(judged, field), [name for name in COLUMNS if name in table]]
