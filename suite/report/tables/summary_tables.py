"""Tables at the top of the page: measured claims, contradicted claims, and figures by their match."""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.claims.claim import Evidence, Judged, Scope, Verdict
from suite.report.panels.published_figures import Paper
from suite.report.tables import claim_tables, record_tables, scorecard
from suite.report.tables.record_tables import NONE, Cell, Column, Table

_HOLDS = (Verdict.REPRODUCED, Verdict.TREND_ONLY)

_MEASURED = (
    Column("claim", numeric=False),
    Column("assertion of the paper", numeric=False),
    Column("printed"),
    Column("ours"),
    Column("unit", numeric=False),
    Column("verdict", numeric=False),
    Column("measured on", numeric=False),
)


def measured(judged: Sequence[Judged], near: claim_tables.ClaimContext) -> list[tuple[str, Table]]:
    """For each paper a heading and a table of the claims that hold on measured evidence."""
    tables = []
    for paper in scorecard.papers(judged):
        mine = [judged_claim for judged_claim in judged if scorecard.paper(judged_claim) == paper]
        holding = [
            judged_claim
            for judged_claim in mine
            if judged_claim.evidence is Evidence.MEASURED and judged_claim.verdict in _HOLDS
        ]
        counts = [
            (sum(judged_claim.verdict is verdict for judged_claim in holding), verdict.value) for verdict in _HOLDS
        ]
        words = ", ".join(f"{count} {name}" for count, name in counts if count) or "none"
        rows = tuple(
            (
                _link(judged_claim),
                Cell(judged_claim.claim.asserts or judged_claim.claim.quantity),
                claim_tables.published(judged_claim.claim),
                Cell(claim_tables.in_short(judged_claim)),
                Cell(judged_claim.claim.unit),
                claim_tables.verdict(judged_claim),
                _measured_on(judged_claim, near),
            )
            for judged_claim in sorted(holding, key=lambda item: _HOLDS.index(item.verdict))
        )
        title = f"{paper}: claims that hold on measured evidence"
        tables.append((f"{paper}: {words}", Table(title, _MEASURED, rows, kind="measured")))
    return tables


def _measured_on(item: Judged, near: claim_tables.ClaimContext) -> Cell:
    """The scope, the stand-in, and the machine and commit of a committed record.

    An identity holds for any input, so on a stand-in it counts as published.
    """
    text, lines = item.scope.value, []
    if item.stand_in and item.scope is Scope.STAND_IN:
        text = f"{text}: {item.stand_in}"
    elif item.stand_in:
        lines.append(f"an identity, checked on: {item.stand_in}")
    if machine := near.machines.get(item.record):
        lines.append(f"measured on {machine}")
    return Cell(text, detail="\n".join(lines))


_CONTRADICTED = (
    Column("claim", numeric=False, detail="where"),
    Column("assertion of the paper", numeric=False),
    Column("printed"),
    Column("against it", detail="ours, or printed elsewhere"),
    Column("unit", numeric=False),
    Column("evidence", numeric=False),
    Column("why", numeric=False),
)


def contradicted(judged: Sequence[Judged]) -> Table | None:
    """Table of the contradicted claims, with both numbers next to each other."""
    rows = tuple(
        (
            Cell("", links=_link(verdict).links, detail=f"{scorecard.paper(verdict)}, {verdict.claim.where}"),
            Cell(verdict.claim.asserts or verdict.claim.quantity),
            claim_tables.published(verdict.claim),
            _values(verdict),
            Cell(verdict.claim.unit),
            Cell(verdict.evidence.value if verdict.evidence else NONE),
            Cell(verdict.why),
        )
        for verdict in judged
        if verdict.verdict is Verdict.CONTRADICTED
    )
    return Table("Contradicted claims", _CONTRADICTED, rows, kind="contradicted") if rows else None


def turning(judged: Sequence[Judged]) -> tuple[int, int]:
    """Number of modelled verdicts that change within the ranges of the constants, and number that were varied."""
    states = [claim_tables.sensitivity(verdict) for verdict in judged]
    turns = states.count(claim_tables.TURNS)
    return turns, turns + states.count(claim_tables.STAYS)


def _link(item: Judged) -> Cell:
    return Cell("", links=((f"#{claim_tables.anchor(item.claim.id)}", item.claim.id),))


def _values(item: Judged) -> Cell:
    """Our values, each with its name where the claim has several terms."""
    if len(item.claim.terms) > 1 and len(item.ours) == 1:
        pairs = zip(item.claim.terms, item.ours[0], strict=False)
        return Cell(", ".join(f"{name}: {claim_tables.short(value)}" for name, value in pairs))
    return Cell(claim_tables.in_short(item))


_WORST = (
    Column("published figure", numeric=False),
    Column("largest distance", detail="of a printed number"),
    Column("claim", numeric=False),
    Column("printed"),
    Column("ours"),
    Column("its claims", numeric=False),
)
CARDS = (("measured", _MEASURED), ("contradicted", _CONTRADICTED), ("worst", _WORST))  # kinds, with their columns


def worst(found: Sequence[Paper]) -> Table | None:
    """A row per published figure or table, the worst match first."""
    every = [one for paper in found for one in paper.displays if one.counts]
    rows = []
    for one in sorted(every, key=lambda one: (math.isnan(one.distance), -one.distance)):
        far = one.farthest
        none = Cell(NONE, tone="faint")
        rows.append(
            (
                Cell("", links=((f"#{one.anchor}", one.name),)),
                record_tables.number(one.distance, f"{100 * one.distance:.3g} %"),
                Cell("", links=((f"#{claim_tables.anchor(far.claim.id)}", far.claim.id),)) if far else none,
                claim_tables.published(far.claim) if far else none,
                Cell(claim_tables.in_short(far)) if far else none,
                Cell(one.counts),
            )
        )
    return Table("Published figures by match, worst first", _WORST, tuple(rows), kind="worst") if rows else None
