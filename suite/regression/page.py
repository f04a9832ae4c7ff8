"""Page that puts two sets of records next to each other, and the frame of the pages of nightly runs.

The pages work offline, in the style of the report: no script, nothing from a network, every text escaped.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from suite.core.files import write_atomically
from suite.core.record import Metric
from suite.core.resources import PACKAGE
from suite.regression import format
from suite.regression.comparison import Comparison
from suite.regression.decide import ChangeRule, ChangeVerdict
from suite.regression.matching import RunPair, match_runs
from suite.regression.nightly.night import NightlyStatus
from suite.regression.record_sets import RecordSet, Sample
from suite.report.files import templates
from suite.report.plots.svg import SHEET
from suite.stats.spread import quartiles

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


class Headline(NamedTuple):
    """The first judged metric with a better direction of a run that both sets have.

    Attributes:
        label: Label of the run, with the folder of its machine.
        metric: Name of the metric.
        unit: Unit of the metric.
        better: "lower" or "higher".
        sides: Lower quartile, median and upper quartile in A and in B.
        verdict: Verdict of the comparison, or "not comparable".
        why: Reason of the verdict, or the keys that differ.
    """

    label: str
    metric: str
    unit: str
    better: str
    sides: tuple[tuple[float, float, float], tuple[float, float, float]]
    verdict: str
    why: str

    @property
    def ratio(self) -> float:
        """Median of B divided by the median of A."""
        return self.sides[1][1] / self.sides[0][1] if self.sides[0][1] else math.inf


def write_comparison(path: Path, a: RecordSet, b: RecordSet, comparison: Comparison, rule: ChangeRule) -> Path:
    """Write the page of a comparison: headlines by experiment, runs that are not comparable too."""
    experiments: dict[str, list[Headline]] = defaultdict(list)
    for pair in match_runs(a.samples, b.samples).pairs:
        if row := _headline(pair, comparison, rule):
            experiments[pair.name.experiment].append(row)
    machines = [dict(side.samples[-1].record.provenance.get("machine") or {}) for side in (a, b)]
    sides = list(zip("AB", (a.name, b.name), comparison.commits, machines, strict=True))
    values = {"comparison": comparison, "sides": sides, "experiments": experiments.items(), "answer": _answer}
    content = render("compared.html.j2", **values)
    return write_atomically(path, content.encode("utf-8", "replace"))


def _headline(pair: RunPair, comparison: Comparison, rule: ChangeRule) -> Headline | None:
    """The headline of a run; None if no judged metric with a better direction is in both sets."""
    metrics = {name: metric for sample in pair.a for name, metric in sample.record.metrics.items() if metric.better}
    for name in metrics:
        a, b = (_values(side, name) for side in (pair.a, pair.b))
        if rule.judges(name) and a and b:
            break
    else:
        return None
    kind, verdict, why = metrics[name], "", ""
    if pair.differences:
        verdict, why = "not comparable", "; ".join(map(str, pair.differences))
    for change in comparison.changes:
        if not pair.differences and (change.name, change.config, change.metric) == (pair.name, pair.config, name):
            verdict, why = format.verdict_word(change), format.reason(change)
    label = " · ".join(filter(None, (pair.name.label, pair.name.machine)))
    return Headline(label, name, kind.unit, kind.better, (quartiles(a), quartiles(b)), verdict, why)


def _values(side: Sequence[Sample], name: str) -> list[float]:
    metrics: list[Metric] = [s.record.metrics[name] for s in side if name in s.record.metrics]
    return [value for metric in metrics for value in metric.values if math.isfinite(value)]


def _answer(rows: Sequence[Headline]) -> str:
    """Which run is best in A and in B; empty unless two runs have the same metric."""
    first = rows[0]
    rows = [row for row in rows if row.metric == first.metric]
    if len(rows) < 2:
        return ""
    best = min if first.better == "lower" else max
    a, b = (best(rows, key=lambda row: row.sides[side][1]) for side in (0, 1))
    values = [format.quantity(row.sides[side][1], row.unit) for side, row in enumerate((a, b))]
    if a.label == b.label:
        return f"{a.label} has the best {first.metric} in both: {values[0]} in A, {values[1]} in B."
    return f"The best {first.metric} has {a.label} in A ({values[0]}), but {b.label} in B ({values[1]})."
