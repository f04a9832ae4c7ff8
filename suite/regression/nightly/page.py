"""Pages of nightly runs: one per run with its comparison, and an index with trends.

The pages work offline, in the style of the report: no script, nothing from a network, every text escaped.
"""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from suite.core.resources import PACKAGE
from suite.core.units import seconds, si
from suite.regression import format
from suite.regression.decide import ChangeVerdict
from suite.regression.nightly import history
from suite.regression.nightly.candidates import BaselineComparison, NightlyJudgement
from suite.regression.nightly.history import HistoryLine, NightlyStatus
from suite.regression.nightly.trends import draw_trends, slowdowns
from suite.report.files import write
from suite.report.plots.svg import SHEET

_TEMPLATES = Path(__file__).with_name("templates")
_STYLE = PACKAGE / "report" / "templates" / "style.css"
_RECENT = 10  # runs above the trends; the others stand below
_MAX_ROWS = 400  # of the table of a run; regressions and improvements stand first
STATUS_TONES: dict[str, str] = {
    NightlyStatus.PASSED: "good",
    NightlyStatus.FIRST: "good",
    NightlyStatus.BASELINE_RESET: "trend",
    NightlyStatus.INCONCLUSIVE: "trend",
    NightlyStatus.REGRESSION: "bad",
    NightlyStatus.FAILED: "bad",
}
_VERDICT_TONES = {ChangeVerdict.WORSE: "bad", ChangeVerdict.BETTER: "good", ChangeVerdict.CHANGED: "trend"}


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup(f"{_STYLE.read_text(encoding='utf-8')}\n{SHEET}")
    return environment.get_template(template).render(style=style, tones=STATUS_TONES, **values)


def write_run(place: Path, line: HistoryLine, judgement: NightlyJudgement) -> Path:
    """Write `place`/night.html, the page of one nightly run."""
    candidates = [
        {
            "name": str((change := row.candidate.change).name),
            "metric": change.metric,
            "baseline": row.candidate.baseline,
            "measured": format.percent(change.raw_ratio),
            "scaled": format.percent(scaled) if (scaled := change.scaled_ratio) is not None else "",
            "verdict": row.why,
            "confirmed": row.confirmed,
        }
        for row in judgement.confirmations
    ]
    reference = [(part.partition("/")[0], si(value, "s")) for part, value in line["reference"].items()]
    comparisons = [_comparison_rows(row) for row in judgement.baselines]
    content = _render("night.html.j2", line=line, candidates=candidates, comparisons=comparisons, reference=reference)
    return write(place, "night.html", content)


def _comparison_rows(baseline: BaselineComparison) -> dict[str, Any]:
    comparison = baseline.comparison
    rows = [
        {
            "cells": [
                str(change.name),
                change.metric,
                format.quantity(change.a, change.unit),
                format.quantity(change.b, change.unit),
                format.percent(change.raw_ratio),
                format.percent(scaled) if (scaled := change.scaled_ratio) is not None else "",
                format.interval(change) or "exact",
                format.delta(change),
            ],
            "word": format.verdict_word(change),
            "tone": _VERDICT_TONES.get(change.verdict, "faint"),
            "why": format.reason(change),
        }
        for change in comparison.sorted_changes[:_MAX_ROWS]
    ]
    return {
        "name": baseline.name,
        "range": format.commit_range(comparison.commits),
        "summary": format.summary(comparison),
        "rows": rows,
        "more": len(comparison.changes) - len(rows),
        "outcomes": list(format.outcome_lines(comparison)),
        "not_comparable": [(str(name), list(map(str, keys))) for name, keys in comparison.not_comparable],
        "only": [("before", list(map(str, comparison.only_a))), ("now", list(map(str, comparison.only_b)))],
        "notes": comparison.notes,
    }


def write_index(folder: Path) -> Path:
    """Write `folder`/index.html from the history alone, as records may have been deleted."""
    lines, damaged = history.read(folder)
    rows = [
        {
            "line": line,
            "link": _link(folder, line["night"]),
            "records": _link(folder, line["night"], "index.html"),
            "slowdown": "" if math.isnan(slowdown) else f"{100 * (slowdown - 1):+.1f} %",
            "accepted": bool(line.get("accepted")),
            "duration": _duration(line),
        }
        for line, slowdown in zip(lines, slowdowns(lines), strict=True)
    ]
    trends, more = draw_trends(lines)
    content = _render(
        "nights.html.j2",
        rows=rows[::-1],
        incomplete=history.incomplete_runs(folder, lines),
        damaged=damaged,
        trends=trends,
        more=more,
        recent=_RECENT,
    )
    return write(folder, "index.html", content)


def _link(folder: Path, name: str, file: str = "night.html") -> str:
    """Relative link; empty if the page does not exist or the name in the history is no folder name."""
    is_name = Path(name).name == name and name not in ("", ".", "..")
    return f"{name}/{file}" if is_name and (folder / name / file).is_file() else ""


def _duration(line: HistoryLine) -> str:
    try:
        begin, end = (datetime.fromisoformat(text) for text in (line["started"], line["ended"]))
        return seconds((end - begin).total_seconds())
    except (KeyError, TypeError, ValueError):
        return ""
