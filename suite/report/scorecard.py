"""Decides how verdicts are counted and marked: by paper, by scope and by source, never by colour alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from suite.core.claim import Judged, Scope, Verdict
from suite.core.record import Source

PAPERS = {"axonn": "AxoNN", "samo": "SAMO", "pipeoptim": "PipeOptim", "sparse_gnn": "Sparsity-aware GNN"}
SIGNS = {
    Verdict.REPRODUCED: "✓",
    Verdict.TREND_ONLY: "≈",
    Verdict.REFUTED: "✗",
    Verdict.CALIBRATED: "◇",
    Verdict.NOT_RUN: "○",
}
TONES = {
    Verdict.REPRODUCED: "good",
    Verdict.TREND_ONLY: "trend",
    Verdict.REFUTED: "bad",
    Verdict.CALIBRATED: "fitted",
    Verdict.NOT_RUN: "faint",
}
NO_SOURCE = "nothing run"


@dataclass(frozen=True, slots=True)
class Count:
    """How many claims of a row have one verdict."""

    verdict: Verdict
    count: int

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]

    @property
    def tone(self) -> str:
        return TONES[self.verdict]


@dataclass(frozen=True, slots=True)
class Line:
    """One row: `counts` has one entry per verdict, in their order; `value` is what the claims table is filtered by."""

    name: str
    value: str
    counts: tuple[Count, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Score:
    """Claims by one property (`field` of the claims table's filter) and verdict; whole: `total` is the last row."""

    title: str
    field: str
    lines: tuple[Line, ...]
    total: Line
    whole: bool


def paper(judged: Judged) -> str:
    """The paper's name as the page writes it."""
    return PAPERS.get(judged.claim.paper, judged.claim.paper)


def scope(judged: Judged) -> str:
    return judged.scope.value


def source(judged: Judged) -> str:
    return judged.source or NO_SOURCE


def papers(judged: Sequence[Judged]) -> list[str]:
    """The papers' names, in the order of the claims."""
    return list(dict.fromkeys(paper(item) for item in judged))


def sources(judged: Sequence[Judged]) -> list[str]:
    """The sources that occur, the strongest first."""
    return _known([*(item.value for item in Source), NO_SOURCE], (source(item) for item in judged))


def scopes(judged: Sequence[Judged]) -> list[str]:
    return _known([item.value for item in Scope], (scope(item) for item in judged))


def verdicts(judged: Sequence[Judged]) -> list[str]:
    return _known([item.value for item in Verdict], (item.verdict.value for item in judged))


def _known(order: Sequence[str], found: Iterable[str]) -> list[str]:
    """The values that occur: those of `order` first, then any other."""
    seen = dict.fromkeys(found)
    return [name for name in order if name in seen] + [name for name in seen if name not in order]


def scores(judged: Sequence[Judged]) -> list[Score]:
    """The scorecard's tables; none where there are no claims."""
    if not judged:
        return []
    return [
        _score("By paper", "paper", judged, papers(judged), paper),
        _score("By scope: how our run relates to the published one", "scope", judged, scopes(judged), scope),
        _score("By source of our number", "source", judged, sources(judged), source),
    ]


def _score(
    title: str, field: str, judged: Sequence[Judged], names: Sequence[str], of: Callable[[Judged], str]
) -> Score:
    lines = tuple(_line(name, name, [item for item in judged if of(item) == name]) for name in names)
    return Score(title, field, lines, _line("all", "", judged), whole=field == "paper")


def _line(name: str, value: str, judged: Sequence[Judged]) -> Line:
    counts = tuple(Count(verdict, sum(item.verdict is verdict for item in judged)) for verdict in Verdict)
    return Line(name, value, counts, len(judged))
