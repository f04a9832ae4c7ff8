"""Claims as a table for evaluators.

A row holds the statement of the claim, the command that gives our value, its expected time, the place on the page and
the verdict. A claim without a record lists its requirements.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from suite.claims.claim import Judged
from suite.claims.claim_text import command, ours, published
from suite.config.families import content, groups
from suite.core.resources import conf_folder
from suite.core.units import seconds
from suite.report.files import inert
from suite.report.load import ReportStore
from suite.report.tables.claim_tables import anchor

CONF = conf_folder()
COLUMNS = ("id", "paper", "where", "says", "command", "expected", "figure", "ours", "verdict", "why")
PAGE = "reports/index.html"
_TIMES = (
    "The time of a run is the time of its whole experiment on two quiet cores. The time of an answer is the time of "
    "its function on this machine, rounded up and without the start of the program. Work that several answers share "
    "counts for the first one, so the time of the experiment is listed too."
)


@dataclass(frozen=True)
class ClaimRow:
    """One claim, as text. expected: duration of `command`."""

    id: str
    paper: str
    where: str
    says: str
    command: str
    expected: str
    figure: str
    ours: str
    verdict: str
    why: str


@cache
def expected_seconds() -> Mapping[str, float]:
    """Seconds of each experiment on two quiet cores, from its YAML."""
    named = {name: content("experiment", name).keys["experiment"] for name in groups()["experiment"]}
    return {name: float(keys["expected_seconds"]) for name, keys in named.items() if "expected_seconds" in keys}


def rows(judged: Sequence[Judged], store: ReportStore) -> list[ClaimRow]:
    """A row per claim, in the order of the claims."""
    times = expected_seconds()
    experiments = {entry.file: entry.record.experiment for entry in store.entries}
    return [_row(claim, experiments, times) for claim in judged]


def _row(judged: Judged, experiments: Mapping[str, str], times: Mapping[str, float]) -> ClaimRow:
    claim = judged.claim
    experiment = experiments.get(judged.record) or judged.experiment
    says = " ".join(filter(None, (claim.system, claim.quantity, f"= {published(claim)}", claim.unit)))
    return ClaimRow(
        claim.id,
        claim.paper,
        claim.where,
        says,
        command(judged) or "none: no run here answers it",
        _expected(judged.answer_seconds, times.get(experiment)),
        f"{PAGE}#{anchor(claim.id)}",
        ours(judged) if judged.record else "no record",
        str(judged.verdict),
        judged.why,
    )


def _expected(answer: float | None, experiment: float | None) -> str:
    """The time of the function that answers, as in '3 s; its experiment 2 min 00 s', or of the experiment alone."""
    experiment_time = seconds(experiment) if experiment is not None else ""
    if answer is None:
        return experiment_time or "unknown"
    duration = seconds(math.ceil(answer))
    return f"{duration}; its experiment {experiment_time}" if experiment_time else duration


def as_csv(claim_rows: Sequence[ClaimRow]) -> str:
    """The rows as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([inert(getattr(row, name)) for name in COLUMNS] for row in claim_rows)
    return buffer.getvalue()


def as_markdown(claim_rows: Sequence[ClaimRow], totals: Sequence[str]) -> str:
    """The rows as Markdown, with a table per paper."""
    lines = ["# Claims", "", *totals, "", _TIMES, ""]
    for paper in dict.fromkeys(row.paper for row in claim_rows):
        lines += [f"## {paper}", "", "| claim | where | says | command | expected | figure | ours | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for row in claim_rows:
            if row.paper == paper:
                cells = (row.id, row.where, row.says, f"`{row.command}`", row.expected, f"[row]({row.figure})")
                lines.append("| " + " | ".join(map(_cell, (*cells, row.ours, row.verdict))) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
