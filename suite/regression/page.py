"""Page that puts two sets of records next to each other, and the frame of the pages of nightly runs.

The pages work offline, in the style of the report: no script, nothing from a network, every text escaped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from suite.claims import judge, load
from suite.core.files import write_atomically
from suite.core.resources import PACKAGE
from suite.regression import format
from suite.regression.comparison import Comparison
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import RunName, match_runs
from suite.regression.metrics import LOSSES, Change, compare_metrics
from suite.regression.nightly.night import NightlyStatus
from suite.regression.record_sets import RecordSet
from suite.report.files import templates
from suite.report.load import ReportStore
from suite.report.page import front
from suite.report.page.front import FrontClaim
from suite.report.plots.svg import SHEET

_TEMPLATES = Path(__file__).with_name("templates")
_STYLE = PACKAGE / "report" / "templates" / "style.css"
_TONES: dict[str, str] = {
    NightlyStatus.PASSED: "good",
    NightlyStatus.FIRST: "good",
    NightlyStatus.BASELINE_RESET: "trend",
    NightlyStatus.INCONCLUSIVE: "trend",
    NightlyStatus.INCOMPLETE: "trend",
    NightlyStatus.REGRESSION: "bad",
    NightlyStatus.FAILED: "bad",
    ChangeVerdict.WORSE: "bad",
    ChangeVerdict.BETTER: "good",
    ChangeVerdict.CHANGED: "trend",
}


def render(template: str, **values: Any) -> str:
    """A page in the style of the report."""
    style = Markup(f"{_STYLE.read_text(encoding='utf-8')}\n{SHEET}")
    return templates(_TEMPLATES).get_template(template).render(style=style, tones=_TONES, format=format, **values)


def write_comparison(path: Path, a: RecordSet, b: RecordSet, comparison: Comparison, rule: ChangeRule) -> Path:
    """Write the page of a comparison: the first metric of each run by experiment, and the papers' headline claims.

    Runs that are not comparable stand there too, with the keys that differ.
    """
    apart = [pair for pair in match_runs(a.samples, b.samples).pairs if pair.differences]
    differing = {(pair.name, pair.config): "; ".join(map(str, pair.differences)) for pair in apart}
    first: dict[tuple[RunName, str], Change] = {}
    for change in [*comparison.changes, *compare_metrics(apart, rule)[0]]:
        if change.better and change.metric not in LOSSES:
            first.setdefault((change.name, change.config), change)
    experiments: dict[str, list[tuple[Change, str, str]]] = defaultdict(list)
    for run, change in first.items():
        why = differing.get(run, "")
        said = ("not comparable", why) if why else (format.verdict_word(change), format.reason(change))
        experiments[change.name.experiment].append((change, *said))
    machines = [dict(side.samples[-1].record.provenance.get("machine") or {}) for side in (a, b)]
    sides = list(zip("AB", (a.name, b.name), comparison.commits, machines, strict=True))
    values = {"comparison": comparison, "sides": sides, "experiments": experiments.items(), "answer": _answer}
    content = render("compared.html.j2", **values, papers=_headlines(a, b))
    return write_atomically(path, content.encode("utf-8", "replace"))


def _headlines(a: RecordSet, b: RecordSet) -> list[tuple[str, list[tuple[FrontClaim, FrontClaim]]]]:
    """The headline claims of each paper that records of A or B answer, as the front page of each would show them."""
    sides = [front.papers(judge.judge(load.claims(), ReportStore(Path(), side.samples)), ()) for side in (a, b)]
    papers = []
    for ours, theirs in zip(*sides, strict=True):
        pairs = zip(ours.headlines, theirs.headlines, strict=True)
        papers.append((ours.title, [pair for pair in pairs if {each.evidence for each in pair} - {"", "printed"}]))
    return [paper for paper in papers if paper[1]]


def _answer(rows: Sequence[tuple[Change, str, str]]) -> str:
    """Which run is best in A and in B; empty unless two runs have the same metric."""
    lead = rows[0][0]
    alike = [change for change, *_ in rows if change.metric == lead.metric]
    changes = [change for change in alike if math.isfinite(change.a) and math.isfinite(change.b)]
    if len(changes) < 2:
        return ""
    best = min if lead.better == "lower" else max
    a, b = best(changes, key=lambda change: change.a), best(changes, key=lambda change: change.b)
    values = [format.quantity(value, lead.unit) for value in (a.a, b.b)]
    if a is b:
        return f"{a.name.run} has the best {lead.metric} in both: {values[0]} in A, {values[1]} in B."
    return f"The best {lead.metric} has {a.name.run} in A ({values[0]}), but {b.name.run} in B ({values[1]})."
