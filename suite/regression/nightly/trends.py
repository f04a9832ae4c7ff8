"""Plot of a metric over nightly runs: medians with quartiles, and the band of no change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, MaxNLocator

from suite.core.units import si
from suite.regression.nightly.history import HistoryLine, Quartiles, good
from suite.report.plots import figure
from suite.report.plots.svg import INK

MOST = 40  # pictures: one takes 50 ms
_LINE, _PALE, _BAD, _FAINT = figure.PALETTE[0], figure.PALETTE[1], "#c5483a", 0.75


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric of one run over the nights that have it."""

    run: str
    metric: str
    svg: Markup
    last: str
    change: str


@dataclass(frozen=True, slots=True)
class _Point:
    night: int
    values: Quartiles
    slow: float  # how much longer the reference workload took than in the middle of all nights; nan where it is unknown


def trends(nights: Sequence[HistoryLine]) -> tuple[list[Trend], int]:
    """The judged metrics of the newest nightly run first; and the number of metrics that are not drawn."""
    slow = slowness(nights)
    points_by_metric: dict[tuple[str, str, str, str], list[_Point]] = defaultdict(list)
    for number, night in enumerate(nights):
        for run in night["runs"]:
            for name in night.get("metrics", ()):
                if isinstance(values := run["metrics"].get(name), dict) and values["median"] > 0:
                    points_by_metric[run["experiment"], run["label"], run["config"], name].append(
                        _Point(number, values, slow[number])
                    )
    lines = sorted(points_by_metric.items(), key=lambda item: -item[1][-1].night)
    drawn = [_trend(key, points, nights, f"t{n}") for n, (key, points) in enumerate(lines[:MOST])]
    return drawn, len(lines) - len(drawn)


def slowness(nights: Sequence[HistoryLine]) -> list[float]:
    """Of each night: the geometric mean of its reference's parts over their middle. 1 is the usual machine."""
    parts: dict[str, list[float]] = defaultdict(list)
    for night in nights:
        for part, seconds in night["reference"].items():
            parts[part].append(seconds)
    middle = {part: sorted(values)[len(values) // 2] for part, values in parts.items()}
    return [_slow(night["reference"], middle) for night in nights]


def _slow(told: Mapping[str, float], middle: Mapping[str, float]) -> float:
    if not told:
        return math.nan
    return math.exp(sum(math.log(seconds / middle[part]) for part, seconds in told.items()) / len(told))


def _trend(key: tuple[str, str, str, str], points: Sequence[_Point], nights: Sequence[HistoryLine], salt: str) -> Trend:
    experiment, label, _, metric = key
    unit = points[-1].values["unit"]
    x = [point.night for point in points]
    middle = figure.drawable([point.values["median"] for point in points])
    rate = unit.endswith("/s")
    scaled = [m * (p.slow if rate else 1 / p.slow) for m, p in zip(middle, points, strict=True)]
    base = next((p for p in reversed(points[:-1]) if good(nights[p.night])), points[0])
    width = nights[-1].get("threshold", 0.05)
    with figure.drawing(2.3, left=0.75, bottom=0.62) as (fig, ax):
        centre = base.values["median"]
        ax.axhspan(centre / (1 + width), centre * (1 + width), color=INK, alpha=0.08, linewidth=0)
        ax.plot(x, figure.drawable(scaled), ":", color=_PALE, linewidth=1.3)
        low = [max(0.0, m - p.values["low"]) for m, p in zip(middle, points, strict=True)]
        high = [max(0.0, p.values["high"] - m) for m, p in zip(middle, points, strict=True)]
        ax.errorbar(x, middle, yerr=[low, high], color=_LINE, linewidth=1.4, elinewidth=0.8, marker="o", markersize=3.5)
        bad = [n for n, p in enumerate(points) if nights[p.night]["status"] == "regression"]
        ax.plot([x[n] for n in bad], [middle[n] for n in bad], "s", color=_BAD, markersize=6)
        positions = sorted({round(n * (len(nights) - 1) / 4) for n in range(5)})
        ax.set_xticks(
            positions,
            [f"{figure.clean(nights[n]['night'])}\n{figure.clean(nights[n]['commit'][:7])}" for n in positions],
        )
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.set_xlim(-0.4, len(nights) - 0.6)
        if len(positions) > 1:
            ax.get_xticklabels()[-1].set_horizontalalignment("right")
        alt = f"{metric} of {label} over {len(points)} nights, last {si(middle[-1], unit)}"
        svg = Markup(figure.finished(fig, salt, alt))
    change = 100 * (middle[-1] / centre - 1)
    return Trend(
        f"{experiment} · {label}", metric, svg, si(middle[-1], unit), f"{change:+.1f} % from the last good night before"
    )
