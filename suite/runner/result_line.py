"""Result of a run in one line: its main numbers with units and evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median

from suite.core.record import Metric, Record, Source
from suite.core.units import si

SEARCHED = "best of "  # begins the note on the plan that a search found (suite.simulate.executor)
CURVES = 2  # curves of a sweep in the line
_SWEPT = re.compile(r"^(?P<curve>.+), (?P<size>\d+)(?P<unit> B)?$")  # metrics of a sweep: "mpi, 8 B", "forward, 256"
_CLAIM = re.compile(r"^[a-z_]+\.\w+\..+$")  # metrics that answer a claim have its id


def format_result(record: Record) -> str:
    """Result of a successful run, with its evidence."""
    formatters = (_timed, _replayed, _ordered, _counted, _swept, _answered)
    parts = next((parts for formatter in formatters if (parts := formatter(record))), None)
    return ", ".join([*(parts or [f"{len(record.metrics)} values"]), str(record.source)])


def finite_median(record: Record, name: str) -> float:
    """The median of a metric's finite samples; nan without any."""
    values = [value for value in _values(record, name) if math.isfinite(value)]
    return median(values) if values else math.nan


def _values(record: Record, name: str) -> Sequence[float]:
    return record.metrics[name].values if name in record.metrics else ()


def percent_of_peak(record: Record) -> float:
    """Flops of a batch without recomputation, in percent of the peak of all devices; nan if unknown."""
    peak, seconds = finite_median(record, "peak_flops"), finite_median(record, "batch_time")
    return 100 * finite_median(record, "flops_per_batch") / (peak * seconds) if peak * seconds > 0 else math.nan


def fullest_rank_bytes(memory: Mapping[str, Sequence[float]]) -> float:
    """Bytes of the rank with the most memory, over all kinds; 0 if unknown."""
    return max(map(sum, zip(*memory.values(), strict=False)), default=0)


def _timed(record: Record) -> list[str]:
    """Seconds of a batch; for a simulation also percent of peak and memory, else the losses and scores."""
    samples = _values(record, "batch_time")
    if not samples:
        return []
    parts = [f"{1e3 * finite_median(record, 'batch_time'):8.1f} ms per batch"]
    if record.source is Source.SIMULATED:
        share = percent_of_peak(record)
        parts += [f"{share:.1f} percent of peak"] if math.isfinite(share) else []
        parts += (
            [f"{si(fullest_rank_bytes(record.memory['predicted']), 'B')} per device"]
            if "predicted" in record.memory
            else []
        )
        return parts + [note for note in record.notes if note.startswith(SEARCHED)]
    if "simulated_time" in record.metrics:
        parts.append(f"{1e3 * finite_median(record, 'simulated_time'):.1f} ms predicted by simulation")
    if "exchanged_bytes" in record.metrics:
        parts.append(f"{si(finite_median(record, 'exchanged_bytes'), 'B')} exchanged")
    return [*parts, *_learned(record), f"{len(samples)} samples"]


def _learned(record: Record) -> list[str]:
    losses = record.series.get("loss")
    parts = [f"loss {losses[0]:.4f} to {losses[-1]:.4f}"] if losses else []
    scores = [name for name in record.metrics if f"best_{name}" in record.metrics]
    return parts + [f"{name} {finite_median(record, name):.3g} {record.metrics[name].unit}" for name in scores[:1]]


def _replayed(record: Record) -> list[str]:
    samples = _values(record, "replay_time")
    if not samples:
        return []
    batches = len(record.series.get("loss", ())) or len(samples)
    return [
        *_learned(record),
        f"{batches} batches",
        f"{si(finite_median(record, 'replay_time'), 's')} each in one process",
    ]


def _ordered(record: Record) -> list[str]:
    """Makespan, idle time and counts of a schedule check."""
    formats = {
        "makespan": "makespan {}",
        "idle": "{} idle",
        "in_flight": "{} in flight",
        "version_gap": "{} between the passes of a microbatch",
        "weight_copies": "{} of the weights",
    }
    if "makespan" not in record.metrics:
        return []
    return [text.format(_amount(record.metrics[name])) for name, text in formats.items() if name in record.metrics]


def _amount(metric: Metric) -> str:
    """The median with its unit, in the plural for a unit that is counted."""
    value = median(metric.values)
    unit = {"copy": "copies", "microbatch": "microbatches"}.get(metric.unit, f"{metric.unit}s")
    whole = metric.unit in ("percent", "B", "s", "") or value == 1
    return f"{value:.4g} {metric.unit if whole else unit}".strip()


def _counted(record: Record) -> list[str]:
    """Volumes of a full-graph run, counted from its plan."""
    if "rows_sent" not in record.metrics:
        return []
    parts = [f"{finite_median(record, 'rows_sent'):,.0f} rows sent per product"]
    if "memory_per_process" in record.metrics:
        parts.append(f"{si(finite_median(record, 'memory_per_process'), 'B')} on the fullest process")
    if "epoch_time" in record.metrics:
        parts.append(
            f"{si(finite_median(record, 'epoch_time'), 's')} per epoch {record.metrics['epoch_time'].note}".rstrip()
        )
    return parts


def _swept(record: Record) -> list[str]:
    """The first curves of times over sizes, each from its smallest to its largest size."""
    curves: dict[str, list[tuple[int, str, float]]] = {}  # size, as it is printed, and seconds
    for name, metric in record.metrics.items():
        if (match := _SWEPT.match(name)) and metric.unit == "s" and metric.values:
            size, points = int(match["size"]), curves.setdefault(match["curve"], [])
            points.append((size, si(size, "B") if match["unit"] else match["size"], median(metric.values)))
    parts = []
    for curve, points in list(curves.items())[:CURVES]:
        ends = [f"{si(seconds, 's')} at {size}" for _, size, seconds in (min(points), max(points))]
        parts.append(f"{curve} {' to '.join(dict.fromkeys(ends))}")
    return parts + ([f"{len(curves) - CURVES} more curves"] if len(curves) > CURVES else [])


def _answered(record: Record) -> list[str]:
    """Number of claims or curves of a published figure."""
    claims = [name for name, metric in record.metrics.items() if _CLAIM.match(name) and metric.values]
    parts = [f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'} answered"] if claims else []
    lines = sum(len(panel.get(side, ())) for panel in record.panels for side in ("ours", "paper", "null"))
    return parts + ([f"{lines} {'curve' if lines == 1 else 'curves'}"] if lines and not claims else [])
