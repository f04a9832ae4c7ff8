"""Tables of judged claims: the paper's value, our value, and links to the run.

Cells are plain text, because a claim file may hold any text. An anchor depends only on the id of the claim, so links to
a claim stay valid as long as its id does not change.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from suite.claims import load
from suite.claims.claim import MODELLED, Claim, Decision, Judged, Scalar, Settings, Turn
from suite.claims.claim_text import command
from suite.claims.plain_answers import TONES, plain_answer
from suite.report.load import ReportStore, StoredRecord, text_at
from suite.report.names import NONE, interval, plain, short
from suite.report.tables import scorecard
from suite.report.tables.record_tables import Cell, Table, address

_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
TURNS, STAYS, NOT_VARIED, NO_MODEL = "turns", "stays", "not varied", "no model"  # of a verdict, over the constants
_NONE = Cell(NONE, tone="none")
_MOST_CASES = 4
_LONGEST_COMMAND = 200  # characters
_MOST_TERMS = 6
_MOST_LINKS = 5
_SETTING = 64  # characters of a setting in a row; the whole stands in the claim file


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """Data that tables of claims refer to.

    Attributes:
        runs: Anchor of a run by the file of its record.
        machines: Machine and commit of a committed record by its file.
        notes: Note of the metric that answers a claim, by (file, claim).
        decided: Ids of decisions by claim.
        settings: Published settings by group.
    """

    runs: Mapping[str, str] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    decided: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)


def claim_context(
    store: ReportStore,
    runs: Mapping[str, str],
    judged: Sequence[Judged],
    decisions: Sequence[Decision],
    settings: Settings | None = None,
) -> ClaimContext:
    """Context of the claims from `store`, `decisions` and `settings`."""
    entries = {entry.file: entry for entry in store.entries}
    notes = {
        (verdict.record, verdict.claim.id): metric.note
        for verdict in judged
        if verdict.record in entries
        and (metric := entries[verdict.record].record.metrics.get(verdict.claim.id)) is not None
    }
    decided: dict[str, list[str]] = {}
    for row in decisions:
        for claim in row.claims:
            decided.setdefault(claim, []).append(row.id)
    machines = {entry.file: _origin(entry) for entry in store.entries if entry.machine}
    return ClaimContext(runs, machines, notes, decided, settings or {})


def _origin(entry: StoredRecord) -> str:
    """'epyc-2-cores at 75e0b30e', where the commit is known."""
    return " at ".join(filter(None, (entry.machine, text_at(entry.record.provenance, "commit", "hash")[:8])))


def anchor(claim: str) -> str:
    """The id of a claim's row."""
    if _PLAIN_ID.fullmatch(claim):
        return f"claim-{claim}"
    return "claim--" + hashlib.sha256(claim.encode("utf-8", "replace")).hexdigest()[:16]


def published(claim: Claim) -> Cell:
    """The published value; a range sorts by its finite end."""
    value = claim.value
    if isinstance(value, str):
        return Cell(value)
    if isinstance(value, tuple):
        return Cell(interval(value), next(filter(math.isfinite, value)))
    return Cell(plain(value), float(value))


def ours(judged: Judged, runs: Mapping[str, str]) -> Cell:
    """Our values, case by case, as a link to their record, with the terms and a link to the run below."""
    cases = judged.ours
    run = ((f"#{runs[judged.record]}", "run"),) if judged.record in runs else ()
    if not cases:
        return Cell(NONE, tone="none", links=run)
    names = judged.claim.terms
    if len(names) > 1 and (len(names) > 3 or len(cases) > 1):
        text = f"{len(names) * len(cases)} values"
        lines = [f"{name}: {_first(values)}" for name, values in zip(names, zip(*cases, strict=True), strict=False)]
        detail = "\n".join(lines[:_MOST_TERMS] + ["…"] * (len(lines) > _MOST_TERMS))
    else:
        text = " · ".join(short(value) for value in cases[0]) if len(cases) == 1 else _first([c[0] for c in cases])
        detail = " · ".join(names) if len(names) > 1 else ""
    links = ((address(judged.record), text), *run) if judged.record else ()
    first = cases[0][0] if cases[0] else math.nan
    return Cell("" if links else text, first if math.isfinite(first) else None, detail, links=links)


def in_short(judged: Judged) -> str:
    """Our values as one line of text."""
    each = [value for case in judged.ours for value in case]
    return _first(each) if each else NONE


def _first(values: Sequence[float]) -> str:
    """The values of the first cases."""
    more = len(values) - _MOST_CASES
    return ", ".join(short(value) for value in values[:_MOST_CASES]) + (f", … ({more} more)" if more > 0 else "")


def verdict(judged: Judged, turns: str = "") -> Cell:
    """The verdict with its sign. turns: TURNS marks a verdict that changes within the ranges of the model's
    constants
    """
    kind = judged.verdict
    return Cell(
        f"{scorecard.SIGNS[kind]}\u00a0{kind.value}",
        tone=f"verdict {scorecard.TONES[kind]}",
        badge=turns if turns == TURNS else "",
    )


def answer(judged: Judged) -> Cell:
    """The plain answer to a claim."""
    plain = plain_answer(judged.verdict, judged.evidence)
    return Cell(plain.value, tone=TONES[plain])


def setting(claim: Claim, most: int = _SETTING) -> str:
    """'model gpt3_xl, gpus 64', cut between its parts."""
    parts = [f"{name} {_text(value)}" for name, value in claim.setting.items()]
    text = ", ".join(parts)
    while len(text) > most and len(parts) > 1:
        parts.pop()
        text = ", ".join(parts) + ", …"
    return text if len(text) <= most else text[:most] + "…"


def _text(value: Scalar) -> str:
    return plain(value) if isinstance(value, float) else str(value)


def _system(claim: Claim) -> Cell:
    if not (claim.system or claim.versus):
        return _NONE
    return Cell(claim.system or NONE, detail=f"versus {claim.versus}" if claim.versus else "")


def claims(judged: Sequence[Judged], context: ClaimContext) -> Table:
    """Every claim."""
    menus = filters(judged)
    rows = [
        {
            "claim": item.claim.id,
            "paper\nand where": Cell(scorecard.paper(item), detail=item.claim.where),
            "system\nversus": _system(item.claim),
            "quantity\nsetting": Cell(item.claim.quantity, detail=setting(item.claim)),
            "paper’s value": published(item.claim),
            "our value": ours(item, context.runs),
            "unit": item.claim.unit,
            "evidence": item.evidence.value if item.evidence else _NONE,
            "scope": Cell(item.scope.value, detail=item.stand_in),
            "verdict": verdict(item, sensitivity(item)),
            "why": _why(item, context, context.decided.get(item.claim.id, ())),
        }
        for item in judged
    ]
    return Table(
        "Every claim",
        pd.DataFrame(rows),
        tuple(anchor(item.claim.id) for item in judged),
        tuple(",".join(str(values.index(of(item))) for _, values, of in menus) for item in judged),
        "claims",
    )


def sensitivity(judged: Judged) -> str:
    """Whether the verdict of a modelled value changes within the stated ranges of the model's constants."""
    if judged.evidence not in MODELLED:
        return NO_MODEL
    return (
        NOT_VARIED if judged.sensitivity is None or not judged.sensitivity.varied else TURNS if judged.turns else STAYS
    )


def turning(judged: Sequence[Judged]) -> tuple[int, int]:
    """Number of modelled verdicts that change within the ranges of the constants, and number that were varied."""
    states = [sensitivity(verdict) for verdict in judged]
    turns = states.count(TURNS)
    return turns, turns + states.count(STAYS)


def filters(judged: Sequence[Judged]) -> list[tuple[str, list[str], Any]]:
    """The filters of the claims table: name, values, and the function that gives the value of a claim."""
    every = (TURNS, STAYS, NOT_VARIED, NO_MODEL)
    states = {sensitivity(verdict) for verdict in judged}
    return [
        *((name, scorecard.values(judged, name), of) for name, (of, _) in scorecard.FIELDS.items()),
        ("sensitivity", [name for name in every if name in states], sensitivity),
    ]


def _why(judged: Judged, context: ClaimContext, decided: Sequence[str] = ()) -> Cell:
    """The reason of the verdict, with folded details.

    The details are the assertion of the paper, the limits of the check, notes on the value, the other answers, the
    sensitivity, the decisions about the claim, and the command.
    """
    claim = judged.claim
    links = tuple((f"#{decision_anchor(name)}", f"decision {name}") for name in decided)
    note = context.notes.get((judged.record, claim.id), "")
    lines = (
        ("The paper asserts", claim.asserts),
        ("Hedge", claim.hedge),
        ("Limits of this check", claim.limits),
        ("Measured on", context.machines.get(judged.record, "")),
        ("Value", "\n".join(filter(None, (note, judged.note)))),
        *(("Other answer", text) for text in _others(judged)),
        ("Sensitivity", _sensitivity(judged)),
    )
    code = command(judged)
    code = code if len(code) <= _LONGEST_COMMAND else f"{code[:_LONGEST_COMMAND]} … (the whole is in claims.json)"
    facts = tuple(line for line in lines if line[1])
    return Cell(judged.why, links=links, code=code, fold="details" if facts or links or code else "", lines=facts)


def _sensitivity(judged: Judged) -> str:
    """Range of our value over the ranges of the model's constants, and the constants at which the verdict changes."""
    if judged.sensitivity is None:
        return ""
    low, high = (short(value) for value in judged.sensitivity.values)
    turns = [f"{turn.verdict} at {turn.constant}={_at(turn)}" for turn in judged.turns]
    return (f"turns: {'; '.join(turns)}; " if turns else "stays; ") + f"our value {low} to {high}"


def _at(turn: Turn) -> str:
    return short(turn.at) if isinstance(turn.at, float) else str(turn.at)


def _others(judged: Judged) -> list[str]:
    """Values and verdicts of the claim's other answers."""
    return [f"{one.evidence or one.claim.reach}: {one.verdict}, {one.why}" for one in judged.others]


def beside(title: str, judged: Sequence[Judged], context: ClaimContext) -> Table | None:
    """Claims of an experiment or of a published figure: the paper's values next to ours."""
    rows = [
        {
            "claim\nwhere": Cell(links=((f"#{anchor(item.claim.id)}", item.claim.id),), detail=item.claim.where),
            "quantity\nsystem": Cell(
                item.claim.quantity, detail=" versus ".join(filter(None, (item.claim.system, item.claim.versus)))
            ),
            "printed": published(item.claim),
            "ours": ours(item, context.runs),
            "unit": item.claim.unit,
            "evidence": item.evidence.value if item.evidence else NONE,
            "holds?": answer(item),
        }
        for item in judged
    ]
    return Table(title, pd.DataFrame(rows), kind="beside") if rows else None


def of_experiment(judged: Sequence[Judged], name: str, files: set[str]) -> list[Judged]:
    """Claims that the runs in `files` answer, and claims without an answer that experiment `name` would answer."""
    return [
        verdict
        for verdict in judged
        if (verdict.record in files if verdict.record else name in _compared(verdict.claim))
    ]


def _compared(claim: Claim) -> set[str]:
    """The experiments whose runs a claim compares."""
    return {answer.experiment for answer in claim.answers if answer.experiment}


def headings_of_cards(judged: Sequence[Judged], tables: Iterable[Table | None]) -> str:
    """CSS that puts its heading in front of each cell of a table that becomes a list of cards on a narrow screen."""
    counted = {scorecard.column(one.verdict, one.evidence) for one in judged}
    kinds = [f"{kind.sign} {name}" for name, kind in scorecard.COLUMNS.items() if name in counted]
    columns = {one.kind: [name.partition("\n")[0] for name in one.frame] for one in tables if one}
    rules = [
        f'  .{name} td:nth-child({place})::before {{ content: "{heading}"; }}'
        for name, headings in (columns | {"score": ["", *kinds, "claims"]}).items()
        for place, heading in enumerate(headings, 1)
        if heading
    ]
    return "\n".join(["@media (max-width: 70rem) {", *rules, "}"])


def decision_anchor(name: str) -> str:
    return "decision" + anchor(name).removeprefix("claim")


def decisions(found: Sequence[Decision], known: set[str]) -> Table | None:
    """Table of contradictions in the papers. known: claims that have a row on this page"""
    rows = [
        {
            "decision\nweight": Cell(decision.id, detail=decision.weight),
            "where": Cell(papers_of(decision), detail=decision.where),
            "contradiction": decision.finding,
            "decision here": decision.decision,
            "claims": _claims_of(decision, known),
        }
        for decision in found
    ]
    anchors = tuple(decision_anchor(decision.id) for decision in found)
    title = "Contradictions in the papers, and the decisions"
    return Table(title, pd.DataFrame(rows), anchors, kind="decisions") if rows else None


def papers_of(item: Decision) -> str:
    names = [name.strip() for name in item.paper.split(",")]
    return ", ".join(load.titles().get(name, name) for name in names if name)


def _claims_of(item: Decision, known: set[str]) -> Cell:
    names = item.claims
    links = tuple((f"#{anchor(name)}", name) for name in names if name in known)
    if not links:
        return Cell(detail=", ".join(names)) if names else _NONE
    return Cell(links=links, fold=f"{len(links)} claims" if len(links) > _MOST_LINKS else "")
