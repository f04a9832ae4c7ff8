"""Result of a run in one line: the numbers that the run was made for, with units and evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median

from suite.core.record import Metric, Record, Source
from suite.core.units import si

SEARCHED = "best of "  # begins the note that says which plan a search found (suite.simulate.executor)
CURVES = 2  # of a sweep that are named
_SWEPT = re.compile(r"^(?P<curve>.+), (?P<size>\d+)(?P<unit> B)?$")  # metrics of a sweep: "mpi, 8 B", "forward, 256"
_CLAIM = re.compile(r"^[a-z_]+\.\w+\..+$")  # metrics that answer a claim have its id


def result(record: Record) -> str:
    """Result of a successful run, with its evidence."""
    tellers = (_timed, _replayed, _ordered, _counted, _swept, _answered)
    parts = next((parts for teller in tellers if (parts := teller(record))), None)
    return ", ".join([*(parts or [f"{len(record.metrics)} values"]), str(record.source)])


def middle(record: Record, name: str) -> float:
    """The median of a metric's finite samples; nan without any."""
    values = [value for value in _values(record, name) if math.isfinite(value)]
    return median(values) if values else math.nan


def _values(record: Record, name: str) -> Sequence[float]:
    return record.metrics[name].values if name in record.metrics else ()


def percent_of_peak(record: Record) -> float:
    """Flops of a batch, without recomputation, in percent of what all devices could do in its time; nan if unknown."""
    peak, seconds = middle(record, "peak_flops"), middle(record, "batch_time")
    return 100 * middle(record, "flops_per_batch") / (peak * seconds) if peak * seconds > 0 else math.nan


def fullest(memory: Mapping[str, Sequence[float]]) -> float:
    """Bytes of the rank that holds most, all kinds together; 0 where nothing is known."""
    return max(map(sum, zip(*memory.values(), strict=False)), default=0)


def _timed(record: Record) -> list[str]:
    """Seconds of a batch; where it was simulated also what decides whether the plan is good, else what it learned."""
    samples = _values(record, "batch_time")
    if not samples:
        return []
    parts = [f"{1e3 * middle(record, 'batch_time'):8.1f} ms per batch"]
    if record.source is Source.SIMULATED:
        share = percent_of_peak(record)
        parts += [f"{share:.1f} percent of peak"] if math.isfinite(share) else []
        parts += [f"{si(fullest(record.memory['predicted']), 'B')} per device"] if "predicted" in record.memory else []
        return parts + [note for note in record.notes if note.startswith(SEARCHED)]
    if "simulated_time" in record.metrics:
        parts.append(f"{1e3 * middle(record, 'simulated_time'):.1f} ms predicted by simulation")
    if "exchanged_bytes" in record.metrics:
        parts.append(f"{si(middle(record, 'exchanged_bytes'), 'B')} exchanged")
    return [*parts, *_learned(record), f"{len(samples)} samples"]


def _learned(record: Record) -> list[str]:
    losses = record.series.get("loss")
    parts = [f"loss {losses[0]:.4f} to {losses[-1]:.4f}"] if losses else []
    scores = [name for name in record.metrics if f"best_{name}" in record.metrics]
    return parts + [f"{name} {middle(record, name):.3g} {record.metrics[name].unit}" for name in scores[:1]]


def _replayed(record: Record) -> list[str]:
    samples = _values(record, "replay_time")
    if not samples:
        return []
    batches = len(record.series.get("loss", ())) or len(samples)
    return [*_learned(record), f"{batches} batches", f"{si(middle(record, 'replay_time'), 's')} each in one process"]


def _ordered(record: Record) -> list[str]:
    """Of an order that was driven without seconds."""
    order = {
        "makespan": "makespan {}",
        "idle": "{} idle",
        "in_flight": "{} in flight",
        "version_gap": "{} between the passes of a microbatch",
        "weight_copies": "{} of the weights",
    }
    if "makespan" not in record.metrics:
        return []
    return [words.format(_amount(record.metrics[name])) for name, words in order.items() if name in record.metrics]


def _amount(metric: Metric) -> str:
    """The median with its unit, in the plural where the unit is a thing that is counted."""
    value = median(metric.values)
    unit = {"copy": "copies", "microbatch": "microbatches"}.get(metric.unit, f"{metric.unit}s")
    whole = metric.unit in ("percent", "B", "s", "") or value == 1
    return f"{value:.4g} {metric.unit if whole else unit}".strip()


def _counted(record: Record) -> list[str]:
    """Of a full-graph run that was counted from its plan."""
    if "rows_sent" not in record.metrics:
        return []
    parts = [f"{middle(record, 'rows_sent'):,.0f} rows sent per product"]
    if "memory_per_process" in record.metrics:
        parts.append(f"{si(middle(record, 'memory_per_process'), 'B')} on the fullest process")
    if "epoch_time" in record.metrics:
        parts.append(f"{si(middle(record, 'epoch_time'), 's')} per epoch {record.metrics['epoch_time'].note}".rstrip())
    return parts


def _swept(record: Record) -> list[str]:
    """Of times over a size the first curves, each from its smallest to its largest size."""
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
    """Of a published figure."""
    claims = [name for name, metric in record.metrics.items() if _CLAIM.match(name) and metric.values]
    parts = [f"{len(claims)} {'claim' if len(claims) == 1 else 'claims'} answered"] if claims else []
    lines = len(record.series)
    return parts + ([f"{lines} {'curve' if lines == 1 else 'curves'}"] if lines and not claims else [])
