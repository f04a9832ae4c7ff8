"""Pages of nightly runs: one per run with its comparison, and an index with trends.

Offline pages in the style of the report: no script, nothing from a network, every text escaped.
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
from suite.regression.compare import format
from suite.regression.compare.metrics import Change
from suite.regression.nightly import history
from suite.regression.nightly.judge import Against, NightlyJudgement
from suite.regression.nightly.trends import slowness, trends
from suite.report.files import write
from suite.report.plots.svg import SHEET
from suite.stats.inference import ChangeVerdict

_TEMPLATES = Path(__file__).with_name("templates")
_STYLE = PACKAGE / "report" / "templates" / "style.css"
_SHOWN = 10  # nights above the trends; the others stand below
_MOST_ROWS = 400  # of a night's table: what got worse or better stands first
TONES = {
    "good": "good",
    "first": "good",
    "new baseline": "trend",
    "undecided": "trend",
    "regression": "bad",
    "failed": "bad",
}


def environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    style = Markup(f"{_STYLE.read_text(encoding='utf-8')}\n{SHEET}")
    return environment().get_template(template).render(style=style, tones=TONES, **values)


def write_night(place: Path, line: history.HistoryLine, judged: NightlyJudgement) -> Path:
    """`place`/night.html."""
    findings = [
        {
            "name": str(finding.suspect.change.name),
            "metric": finding.suspect.change.metric,
            "against": finding.suspect.against,
            "timed": format.percent(_raw(finding.suspect.change)),
            "scaled": format.percent(scaled) if (scaled := _scaled(finding.suspect.change)) is not None else "",
            "turns": finding.why,
            "confirmed": finding.confirmed,
        }
        for finding in judged.findings
    ]
    reference = [(part.partition("/")[0], si(value, "s")) for part, value in line["reference"].items()]
    content = _render(
        "night.html.j2", line=line, findings=findings, sides=[_side(one) for one in judged.against], reference=reference
    )
    return write(place, "night.html", content)


def _raw(change: Change) -> float:
    return change.other if change.scaled and change.other is not None else change.ratio


def _scaled(change: Change) -> float | None:
    return change.ratio if change.scaled else change.other


def _side(one: Against) -> dict[str, Any]:
    order = (
        ChangeVerdict.WORSE,
        ChangeVerdict.BETTER,
        ChangeVerdict.CHANGED,
        ChangeVerdict.UNDECIDED,
        ChangeVerdict.SAME,
    )
    changes = [change for verdict in order for change in one.shown.of(verdict)]
    tones = {ChangeVerdict.WORSE: "bad", ChangeVerdict.BETTER: "good", ChangeVerdict.CHANGED: "trend"}
    rows = [
        {
            "cells": [
                str(change.name),
                change.metric,
                format.quantity(change.a, change.unit),
                format.quantity(change.b, change.unit),
                format.percent(_raw(change)) if change.effect else format.percent(change.ratio),
                format.percent(scaled) if (scaled := _scaled(change)) is not None else "",
                format.interval(change) or "exact",
                f"{change.effect.delta:+.2f}" if change.effect else "",
            ],
            "word": format.word(change),
            "tone": tones.get(change.verdict, "faint"),
            "why": change.why if change.why != "exact" else "",
        }
        for change in changes[:_MOST_ROWS]
    ]
    return {
        "name": one.name,
        "range": format.commit_range(one.shown.commits),
        "summary": format.summary(one.shown),
        "rows": rows,
        "left": len(changes) - len(rows),
        "ended": list(format.ended(one.shown)),
        "apart": [
            (str(name), [str(config_difference) for config_difference in differs]) for name, differs in one.shown.apart
        ],
        "only": [("before", list(map(str, one.shown.only_a))), ("tonight", list(map(str, one.shown.only_b)))],
        "notes": one.shown.notes,
    }


def write_index(folder: Path) -> Path:
    """`folder`/index.html, from the history alone: records may be gone."""
    nights, damaged = history.read(folder)
    slow = slowness(nights)
    rows = [
        {
            "line": night,
            "link": _link(folder, night["night"]),
            "records": _link(folder, night["night"], "index.html"),
            "slow": "" if math.isnan(factor) else f"{100 * (factor - 1):+.1f} %",
            "accepted": bool(night.get("accepted")),
            "took": _took(night),
        }
        for night, factor in zip(nights, slow, strict=True)
    ]
    drawn, skipped = trends(nights)
    content = _render(
        "nights.html.j2",
        rows=rows[::-1],
        incomplete=history.incomplete(folder, nights),
        damaged=damaged,
        trends=drawn,
        left=skipped,
        shown=_SHOWN,
    )
    return write(folder, "index.html", content)


def _link(folder: Path, name: str, file: str = "night.html") -> str:
    """Relative; empty where the page is not there, or the name of a line is no name of a folder."""
    inside = Path(name).name == name and name not in ("", ".", "..")
    return f"{name}/{file}" if inside and (folder / name / file).is_file() else ""


def _took(night: history.HistoryLine) -> str:
    try:
        begin, end = (datetime.fromisoformat(text) for text in (night["started"], night["ended"]))
        return seconds((end - begin).total_seconds())
    except (KeyError, TypeError, ValueError):
        return ""
