"""Markdown tables of verdicts, by evidence and by paper, from the claims.json of a reports folder.

Counts of different evidence stand in different columns or rows and are never added.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.claims import load
from suite.claims.claim import Evidence, Verdict
from suite.core.errors import InvalidRequest
from suite.report.files import write
from suite.report.tables.scorecard import COLUMNS, NO_EVIDENCE, SIGNS, column

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
        if one.paper not in load.titles() or one.verdict not in _VERDICTS or one.evidence not in _EVIDENCE:
            raise InvalidRequest(
                f"{path} has the paper {one.paper!r} with the verdict {one.verdict!r} on the evidence {one.evidence!r}",
                rule="papers, verdicts and evidence of this suite",
                legal=f"suite report reports={folder}",
            )
    return counts


def markdown(claims: Sequence[ClaimCount]) -> str:
    """A table for all claims and one per paper: a row per verdict, a column per kind of evidence that occurs."""
    run = sum(one.verdict != Verdict.NOT_RUN for one in claims)
    parts = [f"{run} of {len(claims)} claims have a value in the records of this page."]
    parts += [_evidence("All papers", claims)]
    parts += [_evidence(name, [one for one in claims if one.paper == paper]) for paper, name in load.titles().items()]
    return "\n\n".join(parts)


def _evidence(name: str, found: Sequence[ClaimCount]) -> str:
    counts = Counter((one.verdict, one.evidence) for one in found)
    columns = [each for each in _EVIDENCE if any(one.evidence == each for one in found)]
    rows = {f"{SIGNS[verdict]} {verdict}": [counts[verdict, each] for each in columns] for verdict in Verdict}
    return f"**{name}, {len(found)} claims**\n\n{_table(columns, rows)}"


def by_paper(claims: Sequence[ClaimCount]) -> str:
    """One table: a row per column of the page's scorecard, a column per paper."""
    titles = load.titles()
    counts = Counter((one.paper, column(one.verdict, one.evidence)) for one in claims)
    rows = {f"{kind.sign} {name}": [counts[paper, name] for paper in titles] for name, kind in COLUMNS.items()}
    whole = Counter(one.paper for one in claims)
    return _table([*titles.values()], {**rows, "claims": [whole[paper] for paper in titles]})


def _table(columns: Sequence[str], rows: Mapping[str, Sequence[int]]) -> str:
    """A Markdown table, without rows of zeros."""
    lines = [f"| {' | '.join(map(str, (name, *row)))} |" for name, row in rows.items() if any(row)]
    return "\n".join([f"| verdict | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}", *lines])


_TABLES = {"evidence": markdown, "paper": by_paper}
_MARKED = re.compile(r"(<!-- verdicts by (evidence|paper): begin -->).*?(<!-- verdicts by \2: end -->)", re.DOTALL)


def fill(document: Path, claims: Sequence[ClaimCount]) -> Path:
    """Write the tables between their markers in a Markdown document. Raises InvalidRequest where it has no markers."""
    try:
        now = document.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{document} cannot be read ({type(error).__name__})", rule="a Markdown file", legal="docs/evidence.md"
        ) from error
    text, count = _MARKED.subn(lambda found: f"{found[1]}\n\n{_TABLES[found[2]](claims)}\n\n{found[3]}", now)
    if not count:
        rule = "<!-- verdicts by evidence: begin -->, or by paper, and the same with end"
        raise InvalidRequest(f"{document} lacks markers", rule=rule, legal="docs/evidence.md")
    return write(document.parent, document.name, text)
