"""Counts of verdicts by paper, scope and evidence. Counts of different evidence are never added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
TONES = {
    Verdict.REPRODUCED: "good",
    Verdict.MATCHED: "trend",
    Verdict.TREND_ONLY: "trend",
    Verdict.CONSISTENT: "fitted",
    Verdict.CALIBRATED: "fitted",
    Verdict.CALIBRATED_MISSED: "fitted",
    Verdict.FED: "fitted",
    Verdict.NO_BETTER: "fitted",
    Verdict.UNDECIDED: "faint",
    Verdict.NOT_MATCHED: "faint",
    Verdict.DIFFERS_ON_STAND_IN: "faint",
    Verdict.DIFFERS: "bad",
    Verdict.CONTRADICTED: "bad",
    Verdict.NOT_RUN: "faint",
}
NO_EVIDENCE = "none"


_BY_EVIDENCE = (Verdict.REPRODUCED, Verdict.TREND_ONLY, Verdict.DIFFERS)  # counted separately for each evidence
_OURS = (Evidence.MEASURED, Evidence.DERIVED)


@dataclass(frozen=True, slots=True)
class VerdictColumn:
    """A column of the scorecard: a verdict, with its evidence where it is counted separately for each."""

    verdict: Verdict
    evidence: Evidence | None = None

    @property
    def name(self) -> str:
        return f"{self.verdict}, {self.evidence}" if self.evidence else self.verdict.value

    def holds(self, verdict: str, evidence: str | None) -> bool:
        return verdict == self.verdict and self.evidence in (None, evidence)


KINDS = tuple(
    VerdictColumn(verdict, each) for verdict in Verdict for each in (_OURS if verdict in _BY_EVIDENCE else (None,))
)


@dataclass(frozen=True, slots=True)
class Count:
    """Number of claims of a row in one column."""

    kind: VerdictColumn
    count: int

    @property
    def verdict(self) -> Verdict:
        return self.kind.verdict

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def evidence(self) -> str:
        return self.kind.evidence.value if self.kind.evidence else ""

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]

    @property
    def tone(self) -> str:
        return TONES[self.verdict]


@dataclass(frozen=True, slots=True)
class ScorecardRow:
    """One row of the scorecard.

    Attributes:
        name: Heading of the row.
        value: Value of the filter of the claims table.
        counts: A count for each column.
        total: Number of claims.
    """

    name: str
    value: str
    counts: tuple[Count, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Score:
    """A table of the scorecard: claims by one property and verdict.

    Attributes:
        title: Title of the table.
        field: Filter of the claims table for the property.
        lines: The rows.
        total: All claims.
        whole: Whether `total` is the last row.
    """

    title: str
    field: str
    lines: tuple[ScorecardRow, ...]
    total: ScorecardRow
    whole: bool


def paper(judged: Judged) -> str:
    """Name of the paper on the page."""
    return load.titles().get(judged.claim.paper, judged.claim.paper)


def scope(judged: Judged) -> str:
    return judged.scope.value


def evidence(judged: Judged) -> str:
    return judged.evidence.value if judged.evidence else NO_EVIDENCE


def papers(judged: Sequence[Judged]) -> list[str]:
    """The papers' names, in the order of the claims."""
    return list(dict.fromkeys(paper(verdict) for verdict in judged))


def evidences(judged: Sequence[Judged]) -> list[str]:
    """The kinds of evidence that occur, the strongest first."""
    return _known([*(member.value for member in Evidence), NO_EVIDENCE], (evidence(member) for member in judged))


def scopes(judged: Sequence[Judged]) -> list[str]:
    return _known([member.value for member in Scope], (scope(member) for member in judged))


def verdicts(judged: Sequence[Judged]) -> list[str]:
    return _known([member.value for member in Verdict], (member.verdict.value for member in judged))


def _known(order: Sequence[str], found: Iterable[str]) -> list[str]:
    """The values that occur: first in the given order, then any other."""
    seen = dict.fromkeys(found)
    return [name for name in order if name in seen] + [name for name in seen if name not in order]


def scores(judged: Sequence[Judged]) -> list[Score]:
    """The scorecard's tables; none where there are no claims."""
    if not judged:
        return []
    return [
        _score("By paper", "paper", judged, papers(judged), paper),
        _score("By scope: how our run relates to the published one", "scope", judged, scopes(judged), scope),
        _score("By evidence: how our value came about", "evidence", judged, evidences(judged), evidence),
    ]


def counts(judged: Sequence[Judged], kinds: Sequence[VerdictColumn] = KINDS) -> tuple[Count, ...]:
    """Number of these claims in each column."""
    return tuple(Count(kind, sum(kind.holds(one.verdict, one.evidence) for one in judged)) for kind in kinds)


def _score(
    title: str, field: str, judged: Sequence[Judged], names: Sequence[str], of: Callable[[Judged], str]
) -> Score:
    kinds = [count.kind for count in counts(judged) if count.count]
    lines = tuple(_line(name, name, [verdict for verdict in judged if of(verdict) == name], kinds) for name in names)
    return Score(title, field, lines, _line("all", "", judged, kinds), whole=field == "paper")


def _line(name: str, value: str, judged: Sequence[Judged], kinds: Sequence[VerdictColumn]) -> ScorecardRow:
    return ScorecardRow(name, value, counts(judged, kinds), len(judged))
