"""Style of curves and bars: inline SVG that follows the text colour of the page.

seaborn and matplotlib draw each picture on a separate figure, without pyplot and its global state. The SVG is then
rewritten. Ids carry a salt, so many pictures share one page. Ink is `currentColor`, so a picture suits light and dark
pages. Dates and metadata are left out, so equal records give equal bytes.
"""

from __future__ import annotations

import io
import math
import statistics
import unicodedata
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.markers import CARETRIGHTBASE
from matplotlib.ticker import FuncFormatter, MaxNLocator

from suite.core import trace as categories
from suite.core.units import si
from suite.report.names import named
from suite.report.plots.svg import INK, lean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

# colours of seaborn's colour-blind palette that are readable on white and on near-black
PALETTE = tuple(sns.color_palette("colorblind").as_hex()[i] for i in (0, 1, 2, 3, 4, 5, 7, 9))
COLOURS = {
    categories.FORWARD: "#2f74b5",
    categories.BACKWARD: "#e0912f",
    categories.WEIGHT: "#97a02c",
    categories.RECOMPUTE: "#b06f1d",
    categories.COMPRESS: "#8a5a12",
    categories.PREDICT: "#c99700",
    categories.TENSOR_REDUCE: "#6a3fb5",
    categories.MESSAGE: "#a8483f",
    categories.REDUCE: "#8668c4",
    categories.TIE: "#b39ddb",
    categories.STEP: "#2f9e77",
    categories.EXPAND: "#14573f",
    categories.COPY: "#6fb89c",
    categories.EVALUATE: "#c65d8f",
    categories.PRODUCT: "#3f8fd0",
    categories.GEMM: "#1d4e79",
    categories.GATHER: "#d9b44a",
    categories.EXCHANGE: "#d1603d",
    categories.ROW_REDUCE: "#5d4a9c",
    categories.TRANSFER: "#c5483a",
    categories.WAIT: "#7f8993",
    categories.BUBBLE: "#b9c1c9",
}
KINDS = {
    "weights": "#2f74b5",
    "gradients": "#e0912f",
    "moments": "#2f9e77",
    "activations": "#8668c4",
    "scratch": "#8b939b",
    "graph": "#d9b44a",
    "features": "#14573f",
    "rows": "#c65d8f",
}
OTHER = "#a08a5b"  # categories and kinds without a colour above
# seven shapes and eight colours: 56 systems have different pairs
SHAPES = {"o": "●", "s": "■", "^": "▲", "v": "▼", "P": "✚", "X": "✕", "*": "★"}
_WIDTH = 6.2  # inches
_SAMPLES = 1500  # samples in one picture
_POINTS = 6000  # points of all curves in one picture, which has 400 columns
_STYLE: dict[str, str | float | bool | list[str]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "suite",
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "text.parse_math": False,  # a label with two dollar signs is a label
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}


def palette(labels: Sequence[str]) -> dict[str, str]:
    """One colour per label, the same in all pictures of an experiment."""
    return {label: PALETTE[index % len(PALETTE)] for index, label in enumerate(labels)}


def shape(number: int) -> tuple[str, str]:
    """Marker of a system by its number, and the same shape as a character."""
    return list(SHAPES.items())[number % len(SHAPES)]


def losses(
    training: Mapping[str, Sequence[float]],
    validation: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    salt: str,
) -> str:
    """Loss per batch by label; validation losses are hollow markers, spread evenly over the batches."""
    with drawing(2.9, left=0.6) as (fig, ax):
        order = list(colours)
        for number, (label, loss) in enumerate(training.items()):
            heights = drawable(loss)
            ax.plot(*outline(heights, _POINTS // len(training)), color=colours[label], linewidth=1.4)
            # markers at different places keep coinciding curves visible
            start, step = _every(number, len(training), len(loss))
            ax.plot(
                range(start + 1, len(loss) + 1, step),
                heights[start::step],
                linestyle="none",
                color=colours[label],
                marker=shape(order.index(label))[0],
                markersize=5,
                markeredgewidth=0,
            )
        for label, loss in validation.items():
            steps = max(len(training.get(label, ())), len(loss))
            places = [(index + 1) * steps / len(loss) for index in range(len(loss))]
            ax.plot(
                places, drawable(loss), "o:", color=colours[label], markerfacecolor="none", markersize=5, linewidth=0.8
            )
        ax.set(xlabel="Batch", ylabel="Loss (mean over the batch)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ends = ", ".join(f"{label} {loss[-1]:.4g}" for label, loss in training.items() if loss)
        return finished(fig, salt, f"Loss per batch. Last values: {ends}.")


def outlined(training: Mapping[str, Sequence[float]]) -> bool:
    """Whether a curve has more points than its picture can show."""
    return any(len(loss) > _POINTS // len(training) for loss in training.values())


def outline(heights: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """x and y of a curve reduced to about `most` points: the minimum and maximum of each stretch.

    A curve with more points than the picture has columns looks like a band, and these are its edges.
    """
    count = len(heights)
    if count <= most:
        return list(range(1, count + 1)), list(heights)
    stretch = math.ceil(2 * count / max(most, 2))
    indices = {0, count - 1}
    for start in range(0, count, stretch):
        here = range(start, min(start + stretch, count))
        if finite := [index for index in here if math.isfinite(heights[index])]:
            indices |= {min(finite, key=heights.__getitem__), max(finite, key=heights.__getitem__)}
        if len(finite) < len(here):  # a gap stays a gap
            indices.add(next(index for index in here if not math.isfinite(heights[index])))
    chosen = sorted(indices)
    return [index + 1 for index in chosen], [heights[index] for index in chosen]


def _every(number: int, curves: int, batches: int) -> tuple[int, int]:
    step = max(1, batches // 8)
    return number * step // curves, step


def batch_times(
    samples: Mapping[str, Sequence[float]],
    bounds: Mapping[str, float],
    faint: Collection[str],
    colours: Mapping[str, str],
    salt: str,
) -> str:
    """Raw samples as points and their median as a bar, by label.

    bounds: shortest time of a batch that the op times of a run allow, drawn as a bracket
    faint: labels that are not comparable
    """
    with _rows(list(samples)) as (fig, ax):
        for row, (label, values) in enumerate(samples.items()):
            finite = [value for value in drawable(values) if math.isfinite(value)]
            if not finite:
                continue
            middle = statistics.median(finite)
            finite = thinned(finite, _SAMPLES // len(samples))
            alpha = 0.3 if label in faint else 0.75
            # jitter by the golden ratio: even, and the same on every build
            y = [row + 0.44 * ((index * 0.6180339887) % 1 - 0.5) for index in range(len(finite))]
            ax.scatter(finite, y, color=colours[label], alpha=alpha, s=17, linewidth=0, zorder=2)
            ax.barh(row, middle, 0.62, color=colours[label], alpha=alpha / 3, linewidth=0, zorder=1)
            ax.plot([middle, middle], [row - 0.34, row + 0.34], color=INK, linewidth=1.6, alpha=alpha + 0.2, zorder=3)
            if label in bounds:
                ax.plot(bounds[label], row, marker=CARETRIGHTBASE, color=INK, markersize=7, alpha=0.55, zorder=4)
        _quantity(ax, "s", "Batch time")
        ax.set_xlim(left=0)
        medians = ", ".join(f"{label} {si(statistics.median(v), 's')} of {len(v)}" for label, v in samples.items())
        return finished(fig, salt, f"Batch time by system, every sample as a point. Medians: {medians}.")


def drawable(values: Sequence[float]) -> list[float]:
    """`values` within the range of an axis: nan beyond 1e30, zero below 1e-30."""
    return [(0.0 if abs(value) < 1e-30 else value) if abs(value) < 1e30 else math.nan for value in values]


def fewer(samples: Mapping[str, Sequence[float]]) -> int:
    """Number of samples drawn per run; 0 if all are drawn."""
    most = _SAMPLES // len(samples)
    return most if any(len(values) > most for values in samples.values()) else 0


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of the values, sorted and at equal steps from the minimum to the maximum."""
    if len(values) <= most:
        return list(values)
    ordered, last = sorted(values), max(most, 2) - 1
    return [ordered[round(step * (len(ordered) - 1) / last)] for step in range(last + 1)]


def memory(predicted: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, float]], salt: str) -> str:
    """Bytes by kind on the rank with the most; a pale bar for predicted and a full bar for measured bytes."""
    labels = list(dict.fromkeys([*predicted, *measured]))
    with _rows(labels) as (fig, ax):
        for row, label in enumerate(labels):
            _stack(ax, row - 0.2, predicted.get(label, {}), KINDS, height=0.3, alpha=0.5)
            _stack(ax, row + 0.2, measured.get(label, {}), KINDS, height=0.3)
        _quantity(ax, "B", "Memory of the rank with the most (bytes)")
        pairs = ", ".join(
            f"{label} {si(sum(predicted.get(label, {}).values()), 'B')} predicted"
            f" and {si(sum(measured.get(label, {}).values()), 'B')} measured"
            for label in labels
        )
        return finished(fig, salt, f"Memory by kind, predicted and measured: {pairs}.")


def breakdowns(seconds: Mapping[str, Mapping[str, float]], faint: Collection[str], salt: str) -> str:
    """The makespan of one traced batch by category, mean over the ranks."""
    with _rows(list(seconds)) as (fig, ax):
        for row, (label, parts) in enumerate(seconds.items()):
            _stack(ax, row, parts, COLOURS, height=0.56, alpha=0.35 if label in faint else 1.0)
        _quantity(ax, "s", "Time of one batch, mean over ranks (s)")
        texts = "; ".join(
            f"{label}: " + ", ".join(f"{name} {si(value, 's')}" for name, value in ordered(parts, COLOURS).items())
            for label, parts in seconds.items()
        )
        return finished(fig, salt, f"Breakdown of the time of one batch. {texts}.")


def ordered(parts: Mapping[str, float], known: Mapping[str, str]) -> dict[str, float]:
    """`parts` in the order of the legend, unknown names last."""
    return {name: parts[name] for name in [*known, *sorted(set(parts) - set(known))] if name in parts}


def _stack(
    ax: Axes, y: float, parts: Mapping[str, float], known: Mapping[str, str], *, height: float, alpha: float = 1.0
) -> None:
    base = 0.0
    for name, value in ordered(parts, known).items():
        if value > 1e-30:
            ax.barh(y, value, height, left=base, color=known.get(name, OTHER), alpha=alpha, linewidth=0)
            base += value


def _quantity(ax: Axes, unit: str, name: str) -> None:
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(name)


@cache
def _style() -> dict[Any, Any]:
    return {**sns.axes_style("white"), **_STYLE}


@contextmanager
def drawing(height: float, *, left: float, top: float = 0.1, bottom: float = 0.46) -> Iterator[tuple[Figure, Axes]]:
    """A figure of `height` inches with margins in inches, drawn only in our style."""
    with mpl.rc_context(_style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has the glyph
        fig = Figure((_WIDTH, height))
        FigureCanvasSVG(fig)
        ax = fig.add_axes((left / _WIDTH, bottom / height, 1 - (left + 0.2) / _WIDTH, 1 - (bottom + top) / height))
        sns.despine(ax=ax)
        yield fig, ax


@contextmanager
def _rows(labels: Sequence[str]) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one horizontal row per label, the first on top."""
    texts = [clean(label) for label in labels]
    margin = 0.25 + 0.076 * max(map(len, texts), default=1)
    with drawing(0.62 + 0.3 * max(len(labels), 2), left=margin) as (fig, ax):
        ax.grid(visible=False, axis="y")
        ax.set_yticks(range(len(labels)), texts)
        ax.set_ylim(max(len(labels), 2) - 0.45, -0.55)
        yield fig, ax


def clean(label: str, most: int = 26) -> str:
    """A label on one line, with the names that people use, without characters that XML forbids."""
    text = "".join(
        " " if unicodedata.category(letter) in {"Cc", "Cs", "Cn", "Co", "Zl", "Zp"} else letter
        for letter in named(label)
    )
    return text if len(text) <= most else f"{text[: most - 1]}…"


def finished(fig: Figure, salt: str, alt: str, hover: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """The figure as an `<svg>` element for a page, with `alt` as its name.

    hover: texts of the markers of a line, by the id of the line, shown when one points at them
    """
    for line in (line for ax in fig.axes for line in (*ax.get_xgridlines(), *ax.get_ygridlines())):
        line.set_clip_on(False)  # it ends at the frame, and each clip is an attribute
    stream = io.StringIO()
    fig.savefig(stream, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(stream.getvalue())
    lean(root, salt)
    for name, texts in hover.items():
        group = root.find(f".//*[@id='{salt}-{name}']")
        for marker, text in zip(group.iter("use") if group is not None else (), texts, strict=False):
            ElementTree.SubElement(marker, "title").text = clean(text, 80)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update(role="img", **{"aria-label": clean(alt, 4000)})
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")
