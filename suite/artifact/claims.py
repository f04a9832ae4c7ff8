"""Claims as lines that an evaluator can follow.

A line holds what the claim says, the command that gives our value, how long that takes, the place on the page and the
verdict here. A claim without a record lists its requirements."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from suite.core.claim import Judged
from suite.core.resources import conf_folder
from suite.core.units import seconds
from suite.report.claim_text import command, ours, published
from suite.report.files import inert
from suite.report.load import ReportStore
from suite.report.tables.claim_tables import anchor

CONF = conf_folder()
COLUMNS = ("id", "paper", "where", "says", "command", "expected", "figure", "ours", "verdict", "why")
PAGE = "reports/index.html"
_TIMES = (
    "The time of a run is that of its whole experiment on two quiet cores. The time of an answer is what its function "
    "took here, rounded up and without the start of the program; work that several answers share counts for the first, "
    "so that the time of the experiment stands next to it."
)


@dataclass(frozen=True)
class ClaimRow:
    """One claim, as text. expected: how long `command` takes"""

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


def expected_seconds() -> dict[str, float]:
    """Seconds of each experiment on two quiet cores, as its YAML says."""
    seconds_of = {}
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        if "expected_seconds" in content.get("experiment", {}):
            seconds_of[path.stem] = float(content["experiment"]["expected_seconds"])
    return seconds_of


def rows(judged: Sequence[Judged], store: ReportStore) -> list[ClaimRow]:
    """In the claims' own order."""
    times = expected_seconds()
    experiments = {entry.file: entry.record.experiment for entry in store.entries}
    return [_row(one, experiments, times) for one in judged]


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
    """'3 s; its experiment 2 min 00 s' where a function answers, which took 3 s; else the time of the experiment."""
    whole = seconds(experiment) if experiment is not None else ""
    if answer is None:
        return whole or "unknown"
    duration = seconds(math.ceil(answer))
    return f"{duration}; its experiment {whole}" if whole else duration


def as_csv(found: Sequence[ClaimRow]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([inert(getattr(row, name)) for name in COLUMNS] for row in found)
    return out.getvalue()


def as_markdown(found: Sequence[ClaimRow], totals: Sequence[str]) -> str:
    """A table per paper."""
    lines = ["# Claims", "", *totals, "", _TIMES, ""]
    for paper in dict.fromkeys(row.paper for row in found):
        lines += [f"## {paper}", "", "| claim | where | says | command | expected | figure | ours | verdict |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for row in found:
            if row.paper == paper:
                cells = (row.id, row.where, row.says, f"`{row.command}`", row.expected, f"[row]({row.figure})")
                lines.append("| " + " | ".join(map(_cell, (*cells, row.ours, row.verdict))) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
