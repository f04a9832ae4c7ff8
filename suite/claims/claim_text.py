"""Claims and our values of them as text, and the files claims.csv and claims.json next to the page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from suite.claims.claim import Check, Claim, Judged
from suite.report.files import inert, write

COLUMNS = (
    *("id", "paper", "where", "system", "quantity", "paper_value", "our_value"),
    *("unit", "evidence", "scope", "verdict", "why", "note", "turns"),
)


def terms(claim: Claim) -> tuple[str, ...]:
    """Names of our values in one case."""
    if claim.check is Check.FORMULA:
        return claim.terms or tuple(f"point {number}" for number in range(1, len(claim.points) + 1))
    return claim.terms or (claim.system or claim.quantity,)


def short(value: float) -> str:
    """A number with at most six digits."""
    return f"{value:.6g}"


def published(claim: Claim) -> str:
    """The published value as text."""
    if isinstance(claim.value, tuple):
        return f"[{short(claim.value[0])}, {short(claim.value[1])}]"
    return claim.value if isinstance(claim.value, str) else repr(claim.value).removesuffix(".0")


def ours(judged: Judged) -> str:
    """Our value as text: a number or term=value pairs, with a bar between cases."""
    names = terms(judged.claim)
    return " | ".join(
        short(case[0])
        if len(case) == 1
        else " ".join(f"{name}={short(value)}" for name, value in zip(names, case, strict=True))
        for case in judged.ours
    )


def turns(judged: Judged) -> str:
    """Constants at which a simulated verdict changes: 'efficiency.summit.host=1 (not matched by the model); ...'."""
    return "; ".join(f"{turn.constant}={turn.at} ({turn.verdict})" for turn in judged.turns)


def write_claims(folder: Path, judged: Iterable[Judged]) -> Path:
    """Write `folder`/claims.csv with a row per claim. Raises OSError if it cannot be written."""
    text = io.StringIO(newline="")
    rows = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for one in judged:
        named = {"system": one.claim.system, "quantity": one.claim.quantity, "our_value": ours(one)}
        entry = {**_entry(one), **named, "paper_value": published(one.claim), "turns": turns(one)}
        rows.writerow({name: inert("" if cell is None else cell) for name, cell in entry.items() if name in COLUMNS})
    return write(folder, "claims.csv", text.getvalue())


def write_json(folder: Path, judged: Iterable[Judged]) -> Path:
    """Write `folder`/claims.json, from which a program can run each claim. Raises OSError if it cannot be written.

    Each entry has the id, the place in the paper, the assertion, the tolerance, both values and the verdict, and the
    evidence, scope and command of our value. Further keys:

    * `answer_seconds`: seconds of the function that computes our value, without the start of the program. Work that
      several answers share counts for the first one. Null if unknown, or if runs answer the claim.
    * `experiment_seconds`: seconds of the whole experiment on two otherwise idle cores. Null if unknown.
    * `range`: our smallest and largest simulated value over the ranges of the constants and choices that it reads. Null
      if they were not varied.
    * `turns`: values of these constants at which the verdict changes.
    """
    rows = [_entry(verdict) for verdict in judged]
    return write(folder, "claims.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def answering(judged: Judged) -> str:
    """The command that computes the headline value again; empty if runs give the value."""
    headline = (answer for answer in judged.claim.answers if judged.evidence in (None, answer.evidence))
    return f"suite claims answer {judged.claim.id}" if any(answer.computed for answer in headline) else ""


def command(judged: Judged) -> str:
    """The command that reproduces our value: for the answer, the run, the claim or the experiment; empty for none."""
    experiment = f"suite run experiment={judged.experiment}" if judged.experiment else ""
    return answering(judged) or judged.command or ("" if judged.record else judged.claim.command) or experiment


def _entry(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    return {
        "id": claim.id,
        "paper": claim.paper,
        "where": claim.where,
        "asserts": claim.asserts,
        "hedge": claim.hedge,
        "limits": claim.limits,
        "check": claim.check.value,
        "cases": claim.cases.value,
        "printed": published(claim),
        "unit": claim.unit,
        "tolerance": claim.slack if isinstance(claim.value, float) else claim.tolerance,
        "verdict": judged.verdict.value,
        "evidence": judged.evidence.value if judged.evidence else None,
        "scope": judged.scope.value,
        "stand_in": judged.stand_in,
        "ours": [[value if math.isfinite(value) else None for value in case] for case in judged.ours],
        "why": judged.why,
        "note": judged.note,
        "range": list(judged.sensitivity.values) if judged.sensitivity else None,
        "turns": [asdict(turn) for turn in judged.turns],
        "command": command(judged) or None,
        "answer_seconds": judged.answer_seconds,
        "experiment_seconds": judged.experiment_seconds,
        "record": judged.record or None,
    }
