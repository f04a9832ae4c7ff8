"""Decides how a claim becomes a line that an evaluator can follow: what it says, the command, how long it takes, where
its figure is, and the verdict here; of what has no record, that it has none and what it would need.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from suite.core.claim import Judged
from suite.core.units import seconds
from suite.report.files import inert
from suite.report.judge import ours, published
from suite.report.load import Store
from suite.report.verdicts import anchor

CONF = Path(__file__).resolve().parents[2] / "conf"
COLUMNS = ("id", "paper", "where", "says", "command", "expected", "figure", "ours", "verdict", "why")
PAGE = "reports/index.html"


@dataclass(frozen=True)
class Row:
    """One claim. expected: of its whole experiment, since an experiment's runs take turns"""

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
    """Of each experiment, as its YAML says of two quiet cores."""
    found = {}
    for path in sorted((CONF / "experiment").glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        if "seconds" in content.get("experiment", {}):
            found[path.stem] = float(content["experiment"]["seconds"])
    return found


def rows(judged: Sequence[Judged], store: Store) -> list[Row]:
    """In the claims' own order."""
    times = expected_seconds()
    experiments = {entry.file: entry.record.experiment for entry in store.entries}
    return [_row(one, experiments, times) for one in judged]


def _row(judged: Judged, experiments: Mapping[str, str], times: Mapping[str, float]) -> Row:
    claim = judged.claim
    experiment = experiments.get(judged.record) or judged.experiment or str(claim.evidence.get("experiment", ""))
    command = judged.command or (f"python -m suite experiment={experiment}" if experiment in times else "")
    says = " ".join(filter(None, (claim.system, claim.quantity, f"= {published(claim)}", claim.unit)))
    return Row(
        claim.id,
        claim.paper,
        claim.where,
        says,
        command or "none: no run here answers it",
        seconds(times[experiment]) if experiment in times else "unknown",
        f"{PAGE}#{anchor(claim.id)}",
        ours(judged) if judged.record else "no record",
        str(judged.verdict),
        judged.why,
    )


def as_csv(found: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([inert(getattr(row, name)) for name in COLUMNS] for row in found)
    return out.getvalue()


def as_markdown(found: Sequence[Row], totals: Sequence[str]) -> str:
    """A table per paper."""
    lines = ["# Claims", "", *totals, "", "A time is that of the whole experiment on two quiet cores.", ""]
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
