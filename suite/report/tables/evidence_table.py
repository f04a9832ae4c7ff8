"""Markdown tables of verdicts by evidence, one per paper, from the claims.json of a reports folder.

Each evidence has its own column; counts of different evidence are never added.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from suite.core.claim import Evidence, Verdict
from suite.core.errors import InvalidRequest
from suite.report.files import write
from suite.report.tables.scorecard import NO_EVIDENCE, PAPERS, SIGNS

BEGIN, END = "<!-- verdicts by evidence: begin -->", "<!-- verdicts by evidence: end -->"
_VERDICTS = [each.value for each in Verdict]
_EVIDENCE = [*(each.value for each in Evidence), NO_EVIDENCE]


class ClaimCount(NamedTuple):
    """Properties of a claim that a table counts."""

    paper: str
    verdict: str
    evidence: str


def entries(folder: Path) -> list[ClaimCount]:
    """The claims of `folder`/claims.json, in their order. Raises InvalidRequest where it is missing or damaged."""
    path = folder / "claims.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        counts = [ClaimCount(row["paper"], row["verdict"], row["evidence"] or NO_EVIDENCE) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} cannot be read ({type(error).__name__})",
            rule="the claims.json that a page was written with",
            legal=f"suite report reports={folder}",
        ) from error
    for one in counts:
        if one.paper not in PAPERS or one.verdict not in _VERDICTS or one.evidence not in _EVIDENCE:
            raise InvalidRequest(
                f"{path} has the paper {one.paper!r} with the verdict {one.verdict!r} on the evidence {one.evidence!r}",
                rule="papers, verdicts and evidence of this suite",
                legal=f"suite report reports={folder}",
            )
    return counts


def markdown(claims: Sequence[ClaimCount]) -> str:
    """A table for all claims and one per paper: a row per verdict, a column per kind of evidence that occurs."""
    run = sum(one.verdict != Verdict.NOT_RUN for one in claims)
    parts = [f"{run} of {len(claims)} claims have a value in the records of this page.", _table("All papers", claims)]
    parts += [_table(name, [one for one in claims if one.paper == paper]) for paper, name in PAPERS.items()]
    return "\n\n".join(parts)


def _table(name: str, found: Sequence[ClaimCount]) -> str:
    counts = Counter((one.verdict, one.evidence) for one in found)
    columns = [each for each in _EVIDENCE if any(one.evidence == each for one in found)]
    signs = {verdict.value: sign for verdict, sign in SIGNS.items()}
    lines = [f"**{name}, {len(found)} claims**", ""]
    lines += [f"| verdict | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for verdict in _VERDICTS:
        row = [counts[verdict, each] for each in columns]
        if any(row):
            lines.append(f"| {signs[verdict]} {verdict} | {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def fill(document: Path, text: str) -> Path:
    """Put `text` between the two markers of a Markdown document. Raises InvalidRequest where it lacks them."""
    try:
        now = document.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{document} cannot be read ({type(error).__name__})", rule="a Markdown file", legal="docs/evidence.md"
        ) from error
    before, begin, rest = now.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InvalidRequest(f"{document} lacks {BEGIN} or {END}", rule="both, in this order", legal="docs/evidence.md")
    return write(document.parent, document.name, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
