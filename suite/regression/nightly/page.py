"""Pages of nightly runs: one per run with its comparison, and an index with trends.

The pages work offline, in the style of the report: no script, nothing from a network, every text escaped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, MaxNLocator

from suite.core.units import seconds, si
from suite.regression import record_sets
from suite.regression.comparison import Comparison
from suite.regression.matching import config_key
from suite.regression.nightly import night
from suite.regression.nightly.night import Night, NightlyStatus
from suite.regression.page import render
from suite.report.files import write
from suite.report.plots import figure
from suite.report.plots.svg import INK
from suite.stats.spread import quartiles

_RECENT = 10  # runs above the trends; the others stand below
_MAX_ROWS = 400  # of the table of a run; regressions and improvements stand first
MAX_PLOTS = 40  # one takes 50 ms


def write_run(place: Path, tonight: Night, comparisons: Sequence[Comparison]) -> Path:
    """Write `place`/night.html, the page of one nightly run."""
    return write(place, "night.html", render("night.html.j2", night=tonight, comparisons=comparisons, most=_MAX_ROWS))


def write_index(folder: Path) -> Path:
    """Write `folder`/index.html, with the runs and the trends of their metrics."""
    nights, damaged = night.read(folder)
    rows = [
        {
            "night": each,
            "link": _link(folder, each.name),
            "records": _link(folder, each.name, "index.html"),
            "duration": _duration(each),
        }
        for each in reversed(nights)
    ]
    trends, more = draw_trends(folder, nights)
    content = render("nights.html.j2", rows=rows, damaged=damaged, trends=trends, more=more, recent=_RECENT)
    return write(folder, "index.html", content)


def _link(folder: Path, name: str, file: str = "night.html") -> str:
    """Relative link; empty if the page does not exist."""
    return f"{name}/{file}" if (folder / name / file).is_file() else ""


def _duration(night: Night) -> str:
    try:
        begin, end = (datetime.fromisoformat(text) for text in (night.started, night.ended))
        return seconds((end - begin).total_seconds())
    except (TypeError, ValueError):
        return ""


# -- trends ----------------------------------------------------------------------------------------------------------


class Trend(NamedTuple):
    """One metric of one run over the nightly runs that have it."""

    run: str
    metric: str
    svg: Markup
    last: str
    change: str


class _Point(NamedTuple):
    """Lower quartile, median and upper quartile of a metric in the nightly run `number`."""

    number: int
    low: float
    median: float
    high: float


def draw_trends(folder: Path, nights: Sequence[Night]) -> tuple[list[Trend], int]:
    """Plots of the judged metrics from the merged records, newest nightly run first; and the number of metrics beyond
    the limit."""
    points_by_metric: dict[tuple[str, str, str, str, str], list[_Point]] = defaultdict(list)
    for number, each in enumerate(nights):
        files = ((file, "") for file in sorted((folder / each.name).glob("records/*.json")))
        for record in (sample.record for sample in record_sets.load(each.name, files).samples):
            for name in each.metrics:
                metric = record.metrics.get(name)
                values = [value for value in metric.values if 0 < value < 1e30] if metric and metric.better else []
                if metric and values:
                    key = record.experiment, record.label, config_key(record), name, metric.unit
                    points_by_metric[key].append(_Point(number, *quartiles(values)))
    newest_first = sorted(points_by_metric.items(), key=lambda item: -item[1][-1].number)
    plots = [_draw(key, points, nights, f"t{n}") for n, (key, points) in enumerate(newest_first[:MAX_PLOTS])]
    return plots, len(newest_first) - len(plots)


def _draw(key: tuple[str, str, str, str, str], points: Sequence[_Point], nights: Sequence[Night], salt: str) -> Trend:
    experiment, label, _, metric, unit = key
    x, medians = [point.number for point in points], [point.median for point in points]
    baseline = next((p for p in reversed(points[:-1]) if nights[p.number].is_baseline), points[0])
    centre, threshold = baseline.median, nights[points[-1].number].threshold
    with figure.drawing(2.3, left=0.75, bottom=0.62) as (fig, ax):
        ax.axhspan(centre / (1 + threshold), centre * (1 + threshold), color=INK, alpha=0.08, linewidth=0)
        spread = [[point.median - point.low for point in points], [point.high - point.median for point in points]]
        ax.errorbar(x, medians, spread, color=figure.PALETTE[0], linewidth=1.4, elinewidth=0.8, marker="o", ms=3.5)
        bad = [point for point in points if nights[point.number].status is NightlyStatus.REGRESSION]
        ax.plot([p.number for p in bad], [p.median for p in bad], "s", color="#c5483a", markersize=6)
        ticks = sorted({round(n * (len(nights) - 1) / 4) for n in range(5)})
        names = [f"{figure.clean(nights[n].name)}\n{figure.clean(nights[n].commit[:7])}" for n in ticks]
        ax.set_xticks(ticks, names)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlim(-0.4, len(nights) - 0.6)
        if len(ticks) > 1:
            ax.get_xticklabels()[-1].set_horizontalalignment("right")
        alt = f"{metric} of {label} over {len(points)} nightly runs, last {si(medians[-1], unit)}"
        svg = Markup(figure.finished(fig, salt, alt))
    change = f"{100 * (medians[-1] / centre - 1):+.1f} % from the accepted baseline before"
    return Trend(f"{experiment} · {label}", metric, svg, si(medians[-1], unit), change)
