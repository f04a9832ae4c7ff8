"""Plot of a metric over nightly runs: medians with quartiles, and the band of no change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, MaxNLocator

from suite.core.units import si
from suite.regression.nightly.history import HistoryLine, NightlyStatus, Quartiles, is_baseline
from suite.report.plots import figure
from suite.report.plots.svg import INK

MAX_PLOTS = 40  # one takes 50 ms
_LINE, _SCALED_LINE, _REGRESSION = figure.PALETTE[0], figure.PALETTE[1], "#c5483a"


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric of one run over the nightly runs that have it."""

    run: str
    metric: str
    svg: Markup
    last: str
    change: str


@dataclass(frozen=True, slots=True)
class _Point:
    """A metric in one nightly run.

    Attributes:
        number: Position of the nightly run in the history.
        values: Quartiles of the metric.
        slowdown: Time of the reference workload relative to its median over all nightly runs; nan if unknown.
    """

    number: int
    values: Quartiles
    slowdown: float


def draw_trends(lines: Sequence[HistoryLine]) -> tuple[list[Trend], int]:
    """Plots of the judged metrics, newest nightly run first; and the number of metrics beyond the limit."""
    slowdown = slowdowns(lines)
    points_by_metric: dict[tuple[str, str, str, str], list[_Point]] = defaultdict(list)
    for number, line in enumerate(lines):
        for run in line["runs"]:
            for name in line.get("metrics", ()):
                if isinstance(values := run["metrics"].get(name), dict) and values["median"] > 0:
                    points = points_by_metric[run["experiment"], run["label"], run["config"], name]
                    points.append(_Point(number, values, slowdown[number]))
    newest_first = sorted(points_by_metric.items(), key=lambda item: -item[1][-1].number)
    plots = [_draw(key, points, lines, f"t{n}") for n, (key, points) in enumerate(newest_first[:MAX_PLOTS])]
    return plots, len(newest_first) - len(plots)


def slowdowns(lines: Sequence[HistoryLine]) -> list[float]:
    """Geometric mean over the parts of the reference workload of their time relative to the median of all nightly
    runs. 1 is the usual speed."""
    seconds_by_part: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for part, seconds in line["reference"].items():
            seconds_by_part[part].append(seconds)
    # the upper median: a time that was measured
    medians = {part: sorted(values)[len(values) // 2] for part, values in seconds_by_part.items()}
    return [_slowdown(line["reference"], medians) for line in lines]


def _slowdown(reference: Mapping[str, float], medians: Mapping[str, float]) -> float:
    if not reference:
        return math.nan
    logs = [math.log(seconds / medians[part]) for part, seconds in reference.items()]
    return math.exp(sum(logs) / len(logs))


def _draw(key: tuple[str, str, str, str], points: Sequence[_Point], lines: Sequence[HistoryLine], salt: str) -> Trend:
    experiment, label, _, metric = key
    unit = points[-1].values["unit"]
    x = [point.number for point in points]
    medians = figure.drawable([point.values["median"] for point in points])
    is_rate = unit.endswith("/s")
    scaled = [m * (p.slowdown if is_rate else 1 / p.slowdown) for m, p in zip(medians, points, strict=True)]
    baseline = next((p for p in reversed(points[:-1]) if is_baseline(lines[p.number])), points[0])
    centre = baseline.values["median"]
    threshold = lines[-1].get("threshold", 0.05)
    with figure.drawing(2.3, left=0.75, bottom=0.62) as (fig, ax):
        ax.axhspan(centre / (1 + threshold), centre * (1 + threshold), color=INK, alpha=0.08, linewidth=0)
        ax.plot(x, figure.drawable(scaled), ":", color=_SCALED_LINE, linewidth=1.3)
        low = [max(0.0, m - p.values["low"]) for m, p in zip(medians, points, strict=True)]
        high = [max(0.0, p.values["high"] - m) for m, p in zip(medians, points, strict=True)]
        size = 3.5
        ax.errorbar(x, medians, [low, high], color=_LINE, linewidth=1.4, elinewidth=0.8, marker="o", markersize=size)
        bad = [n for n, p in enumerate(points) if lines[p.number]["status"] == NightlyStatus.REGRESSION]
        ax.plot([x[n] for n in bad], [medians[n] for n in bad], "s", color=_REGRESSION, markersize=6)
        ticks = sorted({round(n * (len(lines) - 1) / 4) for n in range(5)})
        names = [f"{figure.clean(lines[n]['night'])}\n{figure.clean(lines[n]['commit'][:7])}" for n in ticks]
        ax.set_xticks(ticks, names)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlim(-0.4, len(lines) - 0.6)
        if len(ticks) > 1:
            ax.get_xticklabels()[-1].set_horizontalalignment("right")
        alt = f"{metric} of {label} over {len(points)} nightly runs, last {si(medians[-1], unit)}"
        svg = Markup(figure.finished(fig, salt, alt))
    change = f"{100 * (medians[-1] / centre - 1):+.1f} % from the accepted baseline before"
    return Trend(f"{experiment} · {label}", metric, svg, si(medians[-1], unit), change)
